# SPDX-License-Identifier: Apache-2.0
"""Options that several commands take, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

from flash_attention.arch import ARCHES, Arch, get_arch
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType, KernelConfig, as_kernel_config
from flash_attention.ladder import Rung, get_ladder, pick_rung

DTypeOption = Annotated[str, typer.Option("--dtype", help="fp16 or bf16")]
DHeadOption = Annotated[int, typer.Option("--d-head", help="head dimension: 64 or 128")]
HeadsOption = Annotated[int, typer.Option("--heads", help="heads; a constant of rung 16", min=1)]
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
CausalOption = Annotated[bool, typer.Option("--causal", help="query i sees no key after it")]


def ladder_of(dtype: str, d_head: int, heads: int) -> tuple[Rung, ...]:
    """The ladder for what the options say."""
    return get_ladder(DType.from_string(dtype), d_head, heads)


def chosen_kernel(
    rung: int, config: str | None, *, dtype: str, d_head: int, heads: int
) -> tuple[str, KernelConfig]:
    """A kernel and what to call it: the config if one is given, else the rung."""
    if config is not None:
        return "kernel", as_kernel_config(
            config, dtype=DType.from_string(dtype), d_head=d_head, n_heads=heads
        )
    chosen = pick_rung(ladder_of(dtype, d_head, heads), rung)
    return f"rung {chosen.number} {chosen.name}", chosen.config


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
    if not all(word.isdecimal() and int(word) for word in words):
        raise UnsupportedError(f"{option} takes whole numbers as in 64,128, not {text!r}")
    return tuple(map(int, words))
