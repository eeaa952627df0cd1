# SPDX-License-Identifier: Apache-2.0
"""From a translation unit to a cubin: NVRTC, its log as data, and the disk cache."""

from __future__ import annotations

from flash_attention.compiler.cache import cache_dir
from flash_attention.compiler.elf import ENTRY
from flash_attention.compiler.includes import INCLUDE_DIR
from flash_attention.compiler.kernel import CompiledKernel, compile_kernel
from flash_attention.compiler.log import Resources
from flash_attention.compiler.nvrtc import nvrtc_version

__all__ = [
    "ENTRY",
    "INCLUDE_DIR",
    "CompiledKernel",
    "Resources",
    "cache_dir",
    "compile_kernel",
    "nvrtc_version",
]
