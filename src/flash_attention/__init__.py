# SPDX-License-Identifier: Apache-2.0
"""Attention kernels for NVIDIA GPUs, compiled on first use."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from flash_attention.attention import attention
from flash_attention.choose.table import Table
from flash_attention.choose.table_file import load_table, save_table
from flash_attention.choose.use import use_table
from flash_attention.errors import (
    CompileError,
    FlashAttentionError,
    KernelConfigError,
    LaunchError,
    UnsupportedError,
)
from flash_attention.forward import forward, forward_timed
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
    TileOrder,
)
from flash_attention.launch.emulation import Emulation, emulate
from flash_attention.launch.kernels import forward_kernels
from flash_attention.tools.check import CheckReport, check
from flash_attention.tools.explain import Explanation, explain

if TYPE_CHECKING:
    from flash_attention.tools.tune.on_demand import tuning
    from flash_attention.tools.tune.run import tune

try:
    __version__ = version("flash_attention")
except PackageNotFoundError:  # run from a checkout, not installed
    __version__ = "0+unknown"

__all__ = [
    "CheckReport",
    "CompileError",
    "DType",
    "Emulation",
    "Explanation",
    "FlashAttentionError",
    "FlashForwardKernelConfig",
    "HopperForwardKernelConfig",
    "KernelConfig",
    "KernelConfigError",
    "LaunchError",
    "Table",
    "TileOrder",
    "UnsupportedError",
    "__version__",
    "attention",
    "check",
    "emulate",
    "explain",
    "forward",
    "forward_kernels",
    "forward_timed",
    "load_table",
    "save_table",
    "tune",
    "tuning",
    "use_table",
]

_MODULES = {
    "tune": "flash_attention.tools.tune.run",
    "tuning": "flash_attention.tools.tune.on_demand",
}
"""What times kernels is loaded when it is named: a program that only runs them need not wait."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
