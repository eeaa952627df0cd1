# SPDX-License-Identifier: Apache-2.0
"""Attention kernels for NVIDIA GPUs, compiled on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flash_attention.attention import attention
from flash_attention.backward import backward, backward_timed
from flash_attention.call.backward_call import Gradients
from flash_attention.call.dtype import DType
from flash_attention.call.function import Function
from flash_attention.choose.table import Table
from flash_attention.choose.table_file import load_table, save_table
from flash_attention.dropout import dropout_mask
from flash_attention.errors import (
    CompileError,
    FlashAttentionError,
    KernelConfigError,
    LaunchError,
    UnsupportedError,
)
from flash_attention.families.config import KernelConfig
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig
from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig
from flash_attention.families.sm90.tangent.config import HopperTangentKernelConfig
from flash_attention.families.sm90.wide.config import HopperWideKernelConfig
from flash_attention.forward import forward, forward_timed
from flash_attention.launch.kernels import forward_kernels
from flash_attention.launch.use import use_table
from flash_attention.merge import merge
from flash_attention.version import DISTRIBUTION, VERSION
from flash_attention.warm_up import warm_up

if TYPE_CHECKING:
    from flash_attention import masks, scores
    from flash_attention.launch.emulate import emulate
    from flash_attention.launch.emulation import Emulation

__version__ = VERSION

__all__ = [
    "CheckReport",
    "CompileError",
    "DType",
    "Emulation",
    "Explanation",
    "FlashAttentionError",
    "FlashForwardKernelConfig",
    "Function",
    "Gradients",
    "HopperForwardKernelConfig",
    "HopperFp8KernelConfig",
    "HopperMlaKernelConfig",
    "HopperTangentKernelConfig",
    "HopperWideKernelConfig",
    "KernelConfig",
    "KernelConfigError",
    "LaunchError",
    "Table",
    "TileOrder",
    "UnsupportedError",
    "__version__",
    "attention",
    "backward",
    "backward_timed",
    "check",
    "dropout_mask",
    "emulate",
    "explain",
    "forward",
    "forward_kernels",
    "forward_timed",
    "load_table",
    "masks",
    "merge",
    "save_table",
    "scores",
    "tune",
    "tuning",
    "use_table",
    "warm_up",
]

_WORKBENCH = "flash_attention_workbench"
_MODULES = ("masks", "scores")
_LOADED_WHEN_NAMED = {
    "Emulation": "flash_attention.launch.emulation",
    "emulate": "flash_attention.launch.emulate",
    "CheckReport": f"{_WORKBENCH}.check",
    "check": f"{_WORKBENCH}.check",
    "Explanation": f"{_WORKBENCH}.explain",
    "explain": f"{_WORKBENCH}.explain",
    "tune": f"{_WORKBENCH}.tune.run",
    "tuning": f"{_WORKBENCH}.tune.on_demand",
}
"""The modules of names that a program which only computes attention need not wait for.

The workbench imports this package, and this package never imports the workbench. It serves these
functions of the workbench under their public names, and finds them here, by name, alone. Type
checkers see them as `Any`; `flash_attention_workbench.check` and the others have their types."""


def loaded_when_named(module: str, name: str) -> Any:
    """A name of a module that is imported now."""
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != _WORKBENCH:
            raise
        raise ModuleNotFoundError(
            f"{name} is in the package {_WORKBENCH}, which is not installed; "
            f"pip install {DISTRIBUTION} brings it",
            name=error.name,
        ) from None


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _LOADED_WHEN_NAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return loaded_when_named(_LOADED_WHEN_NAMED[name], name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
