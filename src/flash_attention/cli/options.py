# SPDX-License-Identifier: Apache-2.0
"""Options that several commands take, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

from flash_attention.arch import ARCHES, Arch, get_arch
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention.ladder import Rung, get_ladder

DTypeOption = Annotated[str, typer.Option("--dtype", help="fp16 or bf16")]
DHeadOption = Annotated[int, typer.Option("--d-head", help="head dimension: 64 or 128")]
HeadsOption = Annotated[int, typer.Option("--heads", help="heads, baked into the last rung", min=1)]
ArchOption = Annotated[str, typer.Option("--arch", help=f"one of {', '.join(ARCHES)}")]


def ladder_of(dtype: str, d_head: int, heads: int) -> tuple[Rung, ...]:
    """The ladder for what the options say."""
    return get_ladder(DType.from_string(dtype), d_head, heads)


def pick_rung(ladder: tuple[Rung, ...], number: int) -> Rung:
    """The rung called `number`."""
    for rung in ladder:
        if rung.number == number:
            return rung
    raise UnsupportedError(
        f"there is no rung {number}; the ladder has rungs {ladder[0].number} to {ladder[-1].number}"
    )


def parse_arches(text: str) -> tuple[Arch, ...]:
    """The architectures of a comma-separated list."""
    return tuple(dict.fromkeys(get_arch(name.strip()) for name in text.split(",")))
