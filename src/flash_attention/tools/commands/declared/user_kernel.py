# SPDX-License-Identifier: Apache-2.0
"""Options of a kernel that is not of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SourceArgument = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="a .cu or .ptx file; else a rung is run")
]
EntryOption = Annotated[
    str | None, typer.Option(help="FILE: the kernel to run, where there are several")
]
LaunchGridOption = Annotated[
    str | None, typer.Option("--grid", metavar="X,Y,Z", help="FILE: blocks, as in 4,4")
]
LaunchBlockOption = Annotated[
    str | None, typer.Option("--block", metavar="X,Y,Z", help="FILE: threads of a block")
]
ArgumentOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ARG",
        help="FILE: an argument, in their order: f32:data:64x32@random (or @zeros, @ones, @range,"
        " @FILE.npy; without @ nothing is written there), i32=64",
    ),
]
SharedMemoryOption = Annotated[
    int, typer.Option(help="FILE: bytes of dynamic shared memory", min=0)
]
IncludeOption = Annotated[
    list[Path] | None, typer.Option("--include", "-I", help="FILE: a folder of headers")
]
CompareOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:FUNCTION",
        help="FILE: a function that gets the same arguments and changes the arrays in place",
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option(help="FILE: allowed error, relative to the largest value", min=0),
]
WatchOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ARRAY[3:5]",
        help="FILE: tell of every change of these elements",
        show_default=False,
    ),
]
BreakOption = Annotated[
    list[str] | None,
    typer.Option(
        "--break",
        metavar="FILE:LINE",
        help="FILE: show the registers and the memory that a line names, whenever the thread"
        " comes by",
        show_default=False,
    ),
]
ThreadOption = Annotated[
    str | None,
    typer.Option(
        metavar="CTA,THREAD", help="FILE: the thread that --break is about; 0,0", show_default=False
    ),
]
