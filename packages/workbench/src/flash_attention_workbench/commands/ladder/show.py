# SPDX-License-Identifier: Apache-2.0
"""`flash-attention ladder show N`."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Annotated

import typer
from rich.syntax import Syntax

from flash_attention.families.registry import unit_of
from flash_attention.ladder import Rung, pick_rung
from flash_attention_workbench.commands.console import output
from flash_attention_workbench.commands.ladder.listing import change_of
from flash_attention_workbench.commands.options import (
    DHeadOption,
    DTypeOption,
    HeadsOption,
    PassOption,
    ladder_of,
)
from flash_attention_workbench.ladder.edited import CONFIG
from flash_attention_workbench.ladder.one_file import one_file

COLUMNS = 97  # of a sentence in a comment


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
    """The rung as one CUDA file: what it uses of its headers, its config, and the kernel.

    It compiles by itself. Change it, and `flash-attention emulate FILE.cu` runs it.
    """
    rungs = ladder_of(dtype, d_head, heads, pass_)
    rung = pick_rung(rungs, number)
    unit = unit_of(rung.config).source
    text = unit if source else one_file(unit, title_of(rung, rungs))
    if output.is_terminal:
        output.print(Syntax(text, "cuda", background_color="default"))
    else:
        typer.echo(text, nl=False)


def title_of(rung: Rung, rungs: Sequence[Rung]) -> list[str]:
    """What the file of a rung says of itself: the idea, the change, how to read it and to run it.

    The last line has the config, from which `flash-attention emulate` knows how to launch it.
    """
    below = next((other for other in rungs if other.number == rung.number - 1), None)
    config = rung.config
    change = change_of(below, rung)
    arch, file = config.target(config.default_arch), f"rung{rung.number}.cu"
    sentences = [
        f"Rung {rung.number} of {len(rungs)}, {rung.name}: {rung.idea}.",
        *([f"It changes one field of the rung below: {change}."] if change else []),
        "The kernel and its config are at the end. What they use of each header is above them.",
        f"The file needs no other: nvcc -std=c++20 -arch={arch} -cubin {file}",
        f"Change it, and see what that does without a GPU: flash-attention emulate {file}",
    ]
    lines = [line for sentence in sentences for line in wrap(sentence, COLUMNS)]
    return [*lines, f"{CONFIG} {config.short_form()}"]
