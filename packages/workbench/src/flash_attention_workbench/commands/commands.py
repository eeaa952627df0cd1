# SPDX-License-Identifier: Apache-2.0
"""The command tree, and how the package's errors leave it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flash_attention.errors import FlashAttentionError
from flash_attention.version import VERSION
from flash_attention_workbench.commands.cache import cache_app
from flash_attention_workbench.commands.console import errors, tell
from flash_attention_workbench.commands.declared.calls import check, explain
from flash_attention_workbench.commands.declared.computing import Computing
from flash_attention_workbench.commands.declared.distributed import simulate
from flash_attention_workbench.commands.declared.kernels import (
    build,
    debug,
    doctor,
    emulate,
    inspect,
)
from flash_attention_workbench.commands.declared.ladder import ladder_app
from flash_attention_workbench.commands.declared.measuring import bench, report, tune
from flash_attention_workbench.commands.interrupt import INTERRUPTED

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
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"flash-attention {VERSION}")
        raise typer.Exit


@app.callback()
def flash_attention(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """FlashAttention kernels for NVIDIA GPUs, compiled on first use."""


COMMANDS = (doctor, explain, check, bench, tune, inspect, emulate, debug, report, build, simulate)
for command in COMMANDS:
    app.command(cls=Computing)(command)
app.add_typer(cache_app, name="cache")
app.add_typer(ladder_app, name="ladder")
