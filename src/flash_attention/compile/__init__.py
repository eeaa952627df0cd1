# SPDX-License-Identifier: Apache-2.0
"""From a translation unit to a cubin: NVRTC, its log as data, and the disk cache."""

from __future__ import annotations

from flash_attention.compile.cache_folder import cache_dir
from flash_attention.compile.elf import ENTRY
from flash_attention.compile.includes import INCLUDE_DIR
from flash_attention.compile.kernel import CompiledKernel, compile_kernel, compile_to_ptx
from flash_attention.compile.log import Resources
from flash_attention.compile.nvrtc import nvrtc_version

__all__ = [
    "ENTRY",
    "INCLUDE_DIR",
    "CompiledKernel",
    "Resources",
    "cache_dir",
    "compile_kernel",
    "compile_to_ptx",
    "nvrtc_version",
]
