# SPDX-License-Identifier: Apache-2.0
"""Commands that look at kernels and at what they need."""

from __future__ import annotations

from typing import Annotated

import typer

from flash_attention.arch import ARCHES, DEFAULT_ARCH
from flash_attention_workbench.bench.names import EXAMPLE
from flash_attention_workbench.commands.console import json_file
from flash_attention_workbench.commands.declared.options import (
    ArchOption,
    CausalOption,
    ConfigOption,
    DHeadOption,
    DTypeOption,
    HeadsOption,
    JsonOption,
    PassOption,
)

FORMS = f"a short form, rung:N, or selected: and a problem as in 'selected:{EXAMPLE}'"
SET_HELP = "progression (the ladder), autotune or all; else $FLASH_ATTENTION_KERNELS or progression"
SCHEDULES = ("lockstep", "depth-first", "random")


def inspect(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help=FORMS)],
    against: Annotated[str | None, typer.Option(help="another one, to compare with")] = None,
    arch: Annotated[
        str | None,
        typer.Option(help=f"out of {', '.join(ARCHES)}; left out, the GPU's or the kernel's own"),
    ] = None,
    causal: CausalOption = False,
    window: Annotated[bool, typer.Option("--window", help="with a sliding window")] = False,
    softcap: Annotated[bool, typer.Option("--softcap", help="with capped scores")] = False,
    varlen: Annotated[bool, typer.Option("--varlen", help="with lengths of their own")] = False,
    page: Annotated[int, typer.Option(help="keys of a page; 0: none", min=0)] = 0,
    sass: Annotated[bool, typer.Option("--sass", help="print the machine code, marked")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="print the PTX, marked")] = False,
    source: Annotated[bool, typer.Option("--source", help="print the CUDA, marked")] = False,
    emulate: Annotated[bool, typer.Option("--emulate", help="count in the emulator too")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="measure with ncu too")] = False,
    dtype: DTypeOption = "fp16",
    d_head: DHeadOption = 128,
    heads: HeadsOption = 16,
    pass_: PassOption = "forward",
) -> None:
    """Registers, occupancy, the hot loop instruction by instruction, and what limits it.

    Counts are of the instructions that every turn of the loop over key blocks executes; in a
    backward kernel it is the loop over query blocks. --pass says of which ladder a rung is. Needs
    nvdisasm (the extra "inspect"), --profile a GPU and ncu; nothing else.
    """
    given = locals()
    from flash_attention_workbench.commands.inspect.command import inspect as run

    run(**given)


def emulate(
    rung: Annotated[
        int | None, typer.Option(help="the rung to run; 16, or the one that shows --plant")
    ] = None,
    config: ConfigOption = None,
    plant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="run with a known mistake in the headers; list: all"),
    ] = None,
    seq: Annotated[
        int | None, typer.Option(help="rows of q, k and v; 256, or as many as show --plant", min=1)
    ] = None,
    heads: HeadsOption = 2,
    batch: Annotated[int, typer.Option(help="batch entries", min=1)] = 1,
    d_head: DHeadOption = 128,
    dtype: DTypeOption = "fp16",
    schedule: Annotated[
        str, typer.Option(help=f"order of the warps: {', '.join(SCHEDULES)}")
    ] = SCHEDULES[0],
    seed: Annotated[int, typer.Option(help="of the random schedule")] = 0,
    causal: CausalOption = False,
    arch: ArchOption = None,
    json: JsonOption = None,
) -> None:
    """Run a kernel's PTX on the CPU: its error, what is wrong with it, what it does.

    `flash-attention emulate FILE.cu`, or a .ptx file, is the command `ptx-emulator`, which runs
    kernels of your own: see its --help. Exit code 1 when something was found or the output
    is out of tolerance.
    """
    given = locals()
    from flash_attention_workbench.commands.emulate import emulate as run

    with json_file(json) as given["json"]:
        run(**given)


def debug(
    rung: Annotated[int, typer.Option(help="the rung to look into")] = 16,
    key_block: Annotated[
        int, typer.Option(help="counted from 0 in the order the kernel visits them", min=0)
    ] = 0,
    row: Annotated[int, typer.Option(help="query row to print, and its block to check", min=0)] = 0,
    config: ConfigOption = None,
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--emulator", help="where to run; the GPU if there is one")
    ] = None,
    seq: Annotated[int, typer.Option(help="rows of q, k and v", min=1)] = 256,
    heads: HeadsOption = 2,
    head: Annotated[int, typer.Option(help="the head to look at", min=0)] = 0,
    d_head: DHeadOption = 128,
    dtype: DTypeOption = "fp16",
    seed: Annotated[int, typer.Option(help="of q, k and v")] = 0,
) -> None:
    """S, lse, P and O after one key block: the kernel's beside a float64 reference.

    The kernel runs as it is, on the keys it has visited up to and including this block, and O and
    lse are what it stores then. P comes out as O when V is an identity for the keys of this block
    and 0 for the others, so a mistake in V's way shows in P too, in lse it does not. S follows from
    both: P has 16 bits, the table says how well S is known.

    Exit code 1 when O or lse is out of tolerance or the emulator found something.
    """
    given = locals()
    from flash_attention_workbench.commands.debug import debug as run

    run(**given)


def build(
    set_name: Annotated[
        str | None, typer.Option("--set", help=SET_HELP, show_default=False)
    ] = None,
    pass_: PassOption = "forward",
    arch: Annotated[
        str, typer.Option("--arch", help=f"comma-separated, out of {', '.join(ARCHES)}")
    ] = DEFAULT_ARCH.name,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", help="processes; 0 takes one a core", min=0)
    ] = 0,
) -> None:
    """Fill the cache with the kernels of a set, for images and read-only machines."""
    given = locals()
    from flash_attention_workbench.commands.build import build as run

    run(**given)


def doctor(
    json: JsonOption = None,
) -> None:
    """Look at everything a kernel needs; exit code 1 when something essential fails."""
    given = locals()
    from flash_attention_workbench.commands.doctor import doctor as run

    with json_file(json) as given["json"]:
        run(**given)
