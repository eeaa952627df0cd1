# SPDX-License-Identifier: Apache-2.0
"""`flash-attention ladder show N`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.syntax import Syntax

from flash_attention.families.registry import unit_of
from flash_attention.tools.commands.console import output
from flash_attention.tools.commands.ladder.one_file import one_file
from flash_attention.tools.commands.options import (
    DHeadOption,
    DTypeOption,
    HeadsOption,
    ladder_of,
    pick_rung,
)


def show(
    number: Annotated[int, typer.Argument(metavar="N", help="the rung to read")],
    source: Annotated[
        bool,
        typer.Option("--source", help="only the generated translation unit, not its headers"),
    ] = False,
    dtype: DTypeOption = "fp16",
    d_head: DHeadOption = 128,
    heads: HeadsOption = 16,
) -> None:
    """The rung as one readable CUDA file: the headers it uses, in order, then the kernel."""
    rung = pick_rung(ladder_of(dtype, d_head, heads), number)
    unit = unit_of(rung.config).source
    text = unit if source else one_file(unit)
    if output.is_terminal:
        output.print(Syntax(text, "cuda", background_color="default"))
    else:
        typer.echo(text, nl=False)
