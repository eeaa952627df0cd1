# SPDX-License-Identifier: Apache-2.0
"""`flash-attention ladder show N`."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

import typer
from rich.syntax import Syntax

from flash_attention.families.registry import unit_of
from flash_attention.ladder import Rung, pick_rung
from flash_attention_workbench.commands.console import output
from flash_attention_workbench.commands.ladder.listing import change_of
from flash_attention_workbench.commands.options import (
    ladder_of,
)
from flash_attention_workbench.ladder.one_file import one_file


def show(
    *,
    number: int,
    source: bool,
    dtype: str,
    d_head: int,
    heads: int,
    pass_: str,
) -> None:
    """The rung as one CUDA file that reads from top to bottom and compiles by itself."""
    rungs = ladder_of(dtype, d_head, heads, pass_)
    rung = pick_rung(rungs, number)
    unit = unit_of(rung.config).source
    text = unit if source else one_file(unit, title_of(rung, rungs))
    if output.is_terminal:
        output.print(Syntax(text, "cuda", background_color="default"))
    else:
        typer.echo(text, nl=False)


def title_of(rung: Rung, rungs: Sequence[Rung]) -> list[str]:
    """What the file of a rung says of itself: the idea, the change, the config, how to compile."""
    below = next((other for other in rungs if other.number == rung.number - 1), None)
    config = rung.config
    arch = config.target(config.default_arch)
    change = change_of(below, rung)
    words = config.short_form().replace("+", "+ ")
    return [
        f"Rung {rung.number} of {len(rungs)}, {rung.name}: {rung.idea}.",
        *([f"It changes one field of the rung below: {change}."] if change else []),
        *(line.replace("+ ", "+") for line in wrap(words, 100)),
        f"It needs no other file: nvcc -std=c++20 -arch={arch} -cubin rung{rung.number}.cu",
    ]
