# SPDX-License-Identifier: Apache-2.0
"""The command line, `flash-attention`."""

from __future__ import annotations

from flash_attention.tools.commands.commands import app


def main() -> None:
    """Entry point of the `flash-attention` script."""
    app()


__all__ = ["app", "main"]
