# SPDX-License-Identifier: Apache-2.0
"""Options that several commands take, and what they mean: rungs, architectures, numbers.

Nothing here imports torch, so that `ladder list` does not either.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flash_attention.arch import ARCHES, Arch, get_arch
from flash_attention.call.dtype import DType
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.families.config import KernelConfig
from flash_attention.families.passes import Pass, read_pass
from flash_attention.ladder import Rung, get_ladder

DTypeOption = Annotated[str, typer.Option("--dtype", help="fp16 or bf16")]
DHeadOption = Annotated[int, typer.Option("--d-head", help="head dimension: 64 or 128")]
HeadsOption = Annotated[int, typer.Option("--heads", help="heads; a constant of rung 16", min=1)]
PassOption = Annotated[str, typer.Option("--pass", help="whose kernels: forward or backward")]
AnyPassOption = Annotated[
    str, typer.Option("--pass", help="whose kernels: forward, backward or tangent")
]
ConfigOption = Annotated[
    str | None,
    typer.Option("--config", help="a kernel config: its short form, or rung:5; instead of a rung"),
]
ArchOption = Annotated[
    str | None,
    typer.Option("--arch", help=f"one of {', '.join(ARCHES)}; the kernel's own if left out"),
]
GridDTypeOption = Annotated[
    str | None, typer.Option("--dtype", help="fp16 or bf16; the grid's own if left out")
]
GridDHeadsOption = Annotated[
    str | None, typer.Option("--d-head", help="head dimensions, as in 64,128")
]
GridMaskOption = Annotated[bool | None, typer.Option("--causal/--full", help="only this mask")]
GridSeqOption = Annotated[str | None, typer.Option("--seq", help="lengths, as in 1024,8192")]
GridSeedOption = Annotated[
    int | None, typer.Option("--seed", help="of a grid of random problems; 0 if left out", min=0)
]
GridCountOption = Annotated[
    int | None, typer.Option("--count", help="random problems; 130 if left out", min=1)
]
CausalOption = Annotated[bool, typer.Option("--causal", help="query i sees no key after it")]
JsonOption = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="write what is reported as JSON; - is standard output, which then holds nothing else",
    ),
]


def ladder_of(
    dtype: str, d_head: int, heads: int, pass_: str = Pass.FORWARD.value
) -> tuple[Rung, ...]:
    """The ladder for what the options say."""
    return get_ladder(DType.from_string(dtype), d_head, heads, pass_named(pass_))


def pass_named(name: str) -> Pass:
    """The pass that --pass names."""
    return read_pass("--pass", name)


def runs_on(config: KernelConfig) -> tuple[str, ...]:
    """The known architectures that a config is valid on."""
    return tuple(name for name, arch in ARCHES.items() if config.broken_rule(arch) is None)


def needs(config: KernelConfig) -> str:
    """The architectures that a config needs, in words."""
    names = runs_on(config)
    return "any" if len(names) == len(ARCHES) else ", ".join(names)


def last_rung_on(ladder: tuple[Rung, ...], arch: Arch) -> Rung:
    """The highest rung that runs on an architecture."""
    return [rung for rung in ladder if rung.config.broken_rule(arch) is None][-1]


def parse_arches(text: str) -> tuple[Arch, ...]:
    """The architectures of a comma-separated list."""
    return tuple(dict.fromkeys(get_arch(name.strip()) for name in text.split(",")))


def numbers_of(option: str, text: str | None) -> tuple[int, ...] | None:
    """Whole numbers, comma-separated; None where nothing is given."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    numbers = tuple(int(word) if word.isdecimal() and len(word) < 20 else 0 for word in words)
    if not all(numbers):
        raise UnsupportedError(f"{option} is {quoted(text)}; pass whole numbers, as in 64,128")
    return numbers
