# SPDX-License-Identifier: Apache-2.0
"""The common case of an access to memory in C, where a compiler is found; NumPy does the rest."""

from ptx_emulator.native.load import Native, load_native

__all__ = ["Native", "load_native"]
