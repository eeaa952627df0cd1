# SPDX-License-Identifier: Apache-2.0
"""Anybody's CUDA kernel, or its PTX, in the emulator: NumPy arrays in and out."""

from flash_attention.user_kernel.arguments import Empty
from flash_attention.user_kernel.kernel import UserKernel, UserRun

__all__ = ["Empty", "UserKernel", "UserRun"]
