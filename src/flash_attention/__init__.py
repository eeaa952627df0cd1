# SPDX-License-Identifier: Apache-2.0
"""Attention kernels for NVIDIA GPUs, compiled on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flash_attention.attention import attention
from flash_attention.backward import backward, backward_timed
from flash_attention.call.backward_call import Gradients
from flash_attention.call.dtype import DType
from flash_attention.choose.table import Table
from flash_attention.choose.table_file import load_table, save_table
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
from flash_attention.families.sm90.wide.config import HopperWideKernelConfig
from flash_attention.forward import forward, forward_timed
from flash_attention.launch.kernels import forward_kernels
from flash_attention.launch.use import use_table
from flash_attention.merge import merge
from flash_attention.version import VERSION

if TYPE_CHECKING:
    from flash_attention.launch.emulation import Emulation, emulate
    from flash_attention.tools.check import CheckReport, check
    from flash_attention.tools.explain import Explanation, explain
    from flash_attention.tools.tune.on_demand import tuning
    from flash_attention.tools.tune.run import tune

__version__ = VERSION

__all__ = [
    "CheckReport",
    "CompileError",
    "DType",
    "Emulation",
    "Explanation",
    "FlashAttentionError",
    "FlashForwardKernelConfig",
    "Gradients",
    "HopperForwardKernelConfig",
    "HopperFp8KernelConfig",
    "HopperMlaKernelConfig",
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
    "emulate",
    "explain",
    "forward",
    "forward_kernels",
    "forward_timed",
    "load_table",
    "merge",
    "save_table",
    "tune",
    "tuning",
    "use_table",
]

_LOADED_WHEN_NAMED = {
    "Emulation": "flash_attention.launch.emulation",
    "emulate": "flash_attention.launch.emulation",
    "CheckReport": "flash_attention.tools.check",
    "check": "flash_attention.tools.check",
    "Explanation": "flash_attention.tools.explain",
    "explain": "flash_attention.tools.explain",
    "tune": "flash_attention.tools.tune.run",
    "tuning": "flash_attention.tools.tune.on_demand",
}
"""The emulator and the tools: a program that only computes attention need not wait for them."""


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_NAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LOADED_WHEN_NAMED[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
