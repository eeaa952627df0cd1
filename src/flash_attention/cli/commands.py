# SPDX-License-Identifier: Apache-2.0
"""The command tree, and how the package's errors leave it."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from flash_attention.cli.bench.command import bench
from flash_attention.cli.build import build
from flash_attention.cli.check import check
from flash_attention.cli.console import errors
from flash_attention.cli.debug import debug
from flash_attention.cli.doctor import doctor
from flash_attention.cli.emulate import emulate
from flash_attention.cli.explain import explain
from flash_attention.cli.inspect.command import inspect
from flash_attention.cli.ladder.commands import ladder_app
from flash_attention.cli.report import report
from flash_attention.cli.tune import tune
from flash_attention.errors import FlashAttentionError

BAD_INPUT = 2  # exit code


class _CleanErrors(TyperGroup):
    """Prints an error of this package as one message, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FlashAttentionError as error:
            errors.print("[bold red]error:[/]", end=" ")
            errors.print(str(error), markup=False, highlight=False)
            raise typer.Exit(BAD_INPUT) from error


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
app.add_typer(ladder_app, name="ladder")
