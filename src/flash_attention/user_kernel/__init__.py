# SPDX-License-Identifier: Apache-2.0
"""Anybody's CUDA kernel, or its PTX, in the emulator: NumPy arrays in and out."""

from flash_attention.user_kernel.arguments import Empty, Tensor
from flash_attention.user_kernel.debugging import Debug
from flash_attention.user_kernel.kernel import UserKernel, UserRun

__all__ = ["Debug", "Empty", "Tensor", "UserKernel", "UserRun"]
