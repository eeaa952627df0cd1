# SPDX-License-Identifier: Apache-2.0
"""Anybody's CUDA kernel, or its PTX, in the emulator: NumPy arrays in and out."""
