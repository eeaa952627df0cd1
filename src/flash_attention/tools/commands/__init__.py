# SPDX-License-Identifier: Apache-2.0
"""The command line, `flash-attention`."""

from __future__ import annotations

import sys

from flash_attention.tools.extras import how_to_install


def main() -> None:
    """Entry point of the `flash-attention` script."""
    try:
        from flash_attention.tools.commands.commands import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"flash-attention: the command line needs {error.name}; {how_to_install('cli')}")
    app(prog_name="flash-attention")
