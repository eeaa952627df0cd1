# SPDX-License-Identifier: Apache-2.0
"""PTX text and its parsed form."""

from ptx_emulator.ptx.parse import parse

__all__ = ["parse"]
