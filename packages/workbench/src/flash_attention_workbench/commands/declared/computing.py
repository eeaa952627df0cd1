# SPDX-License-Identifier: Apache-2.0
"""A command that computes something, and so needs the whole package."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from flash_attention_workbench.commands.interrupt import ending_at_once


class Computing(TyperCommand):
    """Imports the package when it runs; its help does without."""

    def invoke(self, ctx: Any) -> Any:
        with ending_at_once():
            from flash_attention import attention  # noqa: F401  # before a module that it imports

        return super().invoke(ctx)
