# SPDX-License-Identifier: Apache-2.0
"""The command tree, and how the package's errors leave it."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from flash_attention.errors import FlashAttentionError
from flash_attention.tools.commands.bench.command import bench
from flash_attention.tools.commands.build import build
from flash_attention.tools.commands.cache import cache_app
from flash_attention.tools.commands.check import check
from flash_attention.tools.commands.console import INTERRUPTED, errors, tell
from flash_attention.tools.commands.debug import debug
from flash_attention.tools.commands.doctor import doctor
from flash_attention.tools.commands.emulate import emulate
from flash_attention.tools.commands.explain import explain
from flash_attention.tools.commands.inspect.command import inspect
from flash_attention.tools.commands.ladder.commands import ladder_app
from flash_attention.tools.commands.report import report
from flash_attention.tools.commands.tune import tune

BAD_INPUT = 2  # exit code


class _CleanErrors(TyperGroup):
    """Prints an error of this package as one message, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FlashAttentionError as error:
            tell(str(error))
            raise typer.Exit(BAD_INPUT) from error
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError":
                raise
            tell(f"out of memory: {error}; pass a smaller shape")
            raise typer.Exit(BAD_INPUT) from error
        except KeyboardInterrupt:
            errors.print("interrupted")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_CleanErrors,
    help="FlashAttention kernels for NVIDIA GPUs, compiled on first use.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    add_completion=False,
)
app.command()(doctor)
app.command()(explain)
app.command()(check)
app.command()(bench)
app.command()(tune)
app.command()(inspect)
app.command()(emulate)
app.command()(debug)
app.command()(report)
app.command()(build)
app.add_typer(cache_app, name="cache")
app.add_typer(ladder_app, name="ladder")
