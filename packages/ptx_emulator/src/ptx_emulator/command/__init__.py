# SPDX-License-Identifier: Apache-2.0
"""The command line, `ptx-emulator`."""

from ptx_emulator.command.main import main

__all__ = ["main"]
