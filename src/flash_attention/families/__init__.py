# SPDX-License-Identifier: Apache-2.0
"""Kernel families: each folder holds everything about the kernels of one architecture."""
