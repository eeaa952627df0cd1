# SPDX-License-Identifier: Apache-2.0
"""Kernel families: each folder answers for the kernels of one architecture."""
