# SPDX-License-Identifier: Apache-2.0
"""The commands below `flash-attention ladder`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flash_attention_workbench.commands.console import json_file
from flash_attention_workbench.commands.declared.computing import Computing
from flash_attention_workbench.commands.declared.options import (
    ArchOption,
    CausalOption,
    DHeadOption,
    DTypeOption,
    HeadsOption,
    JsonOption,
    PassOption,
)

GRIDS = ("seed", "quick")

ladder_app = typer.Typer(
    help="The ladder: list it, read a rung, compare two, run it.", no_args_is_help=True
)


@ladder_app.command("list")
def list_rungs(
    dtype: DTypeOption = "fp16",
    d_head: DHeadOption = 128,
    heads: HeadsOption = 16,
    pass_: PassOption = "forward",
) -> None:
    """Number, name, the one changed field, the GPUs and the idea of every rung."""
    given = locals()
    from flash_attention_workbench.commands.ladder.listing import list_rungs as run

    run(**given)


@ladder_app.command(cls=Computing)
def show(
    number: Annotated[int, typer.Argument(metavar="N", help="the rung to read")],
    source: Annotated[
        bool,
        typer.Option("--source", help="only the generated translation unit, not its headers"),
    ] = False,
    dtype: DTypeOption = "fp16",
    d_head: DHeadOption = 128,
    heads: HeadsOption = 16,
    pass_: PassOption = "forward",
) -> None:
    """The rung as one CUDA file that reads from top to bottom and compiles by itself."""
    given = locals()
    from flash_attention_workbench.commands.ladder.show import show as run

    run(**given)


@ladder_app.command(cls=Computing)
def diff(
    before: Annotated[int, typer.Argument(metavar="N", help="the rung to start from")],
    after: Annotated[int, typer.Argument(metavar="M", help="the rung to arrive at")],
    arch: ArchOption = None,
    dtype: DTypeOption = "fp16",
    d_head: DHeadOption = 128,
    heads: HeadsOption = 16,
    pass_: PassOption = "forward",
) -> None:
    """The changed field, the source, and what it did to registers and instructions."""
    given = locals()
    from flash_attention_workbench.commands.ladder.diff import diff as run

    run(**given)


@ladder_app.command("run", cls=Computing)
def run_ladder(
    dtype: DTypeOption = "fp16",
    d_head: DHeadOption = 128,
    heads: HeadsOption = 16,
    pass_: PassOption = "forward",
    grid: Annotated[str, typer.Option(help=f"shapes to time: {' or '.join(GRIDS)}")] = "quick",
    causal: CausalOption = False,
    repeats: Annotated[int, typer.Option(help="samples of each contender and shape", min=1)] = 30,
    config: Annotated[
        list[str] | None, typer.Option(help="also time this config, in its short form")
    ] = None,
    arch: Annotated[
        str | None, typer.Option(help="inspect and emulate for this one, even with a GPU")
    ] = None,
    json: JsonOption = None,
    plot: Annotated[Path | None, typer.Option(help="write a PNG here")] = None,
) -> None:
    """Climb the ladder: every rung checked and timed, or, without a GPU, inspected and emulated."""
    given = locals()
    from flash_attention_workbench.commands.ladder.run import run

    with json_file(json) as given["json"]:
        run(**given)
