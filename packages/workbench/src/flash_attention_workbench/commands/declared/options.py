# SPDX-License-Identifier: Apache-2.0
"""Options that several commands take, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flash_attention.arch import ARCHES

DTypeOption = Annotated[str, typer.Option("--dtype", help="fp16 or bf16")]
DHeadOption = Annotated[int, typer.Option("--d-head", help="head dimension: 64 or 128")]
HeadsOption = Annotated[int, typer.Option("--heads", help="heads; a constant of rung 16", min=1)]
PassOption = Annotated[str, typer.Option("--pass", help="whose kernels: forward or backward")]
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
JsonOption = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="write what is reported as JSON; - is standard output, which then holds nothing else",
    ),
]
