# SPDX-License-Identifier: Apache-2.0
"""The command tree, and how the package's errors leave it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import typer

from flash_attention.errors import FlashAttentionError
from flash_attention.version import VERSION
from flash_attention_workbench.commands.console import errors, tell
from flash_attention_workbench.commands.interrupt import INTERRUPTED
from flash_attention_workbench.commands.lazy import LazyGroup

BAD_INPUT = 2  # exit code


class _Commands(LazyGroup):
    """Prints an error of this package as one message, without a traceback."""

    places: ClassVar = {
        "doctor": "doctor:doctor",
        "explain": "explain:explain",
        "check": "check:check",
        "bench": "bench.command:bench",
        "tune": "tune:tune",
        "inspect": "inspect.command:inspect",
        "emulate": "emulate:emulate",
        "debug": "debug:debug",
        "report": "report:report",
        "build": "build:build",
        "simulate": "simulate:simulate",
    }

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


class _LadderCommands(LazyGroup):
    """What is below `flash-attention ladder`."""

    places: ClassVar = {
        "list": "ladder.listing:list_rungs",
        "show": "ladder.show:show",
        "diff": "ladder.diff:diff",
        "run": "ladder.run:run",
    }
    without_torch = frozenset({"list"})


class _CacheCommands(LazyGroup):
    """What is below `flash-attention cache`."""

    places: ClassVar = {
        "list": "cache:list_entries",
        "size": "cache:size",
        "clear": "cache:clear",
        "verify": "cache:verify",
    }
    without_torch = frozenset(places)


cache_app = typer.Typer(
    cls=_CacheCommands,
    help="Compiled kernels on disk: list, size, clear, verify.",
    no_args_is_help=True,
)
ladder_app = typer.Typer(
    cls=_LadderCommands,
    help="The ladder: list it, read a rung, compare two, run it.",
    no_args_is_help=True,
)
app = typer.Typer(
    cls=_Commands,
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


app.add_typer(cache_app, name="cache")
app.add_typer(ladder_app, name="ladder")
