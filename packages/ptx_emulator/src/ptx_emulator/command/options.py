# SPDX-License-Identifier: Apache-2.0
"""The options of `ptx-emulator`."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptx_emulator.choices import (
    ANNOTATIONS,
    ARGUMENT_FORMS,
    DEFAULT_ARCH,
    PATIENCE_S,
    SCHEDULES,
)

EPILOG = """\
  ptx-emulator kernel.cu --grid 4 --block 256 --arg f32:out:4 --arg f32:in:1024@random

Exit code 1: something was found, or an array is wrong. 2: the kernel cannot be run."""


@dataclass
class Options:
    """What was asked for."""

    source: Path = Path()
    entry: str | None = None
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    arg: list[str] = field(default_factory=list)
    smem: int = 0
    cluster: tuple[int, ...] | None = None
    include: list[Path] = field(default_factory=list)
    define: list[str] = field(default_factory=list)
    compare: str | None = None
    tolerance: float | None = None
    arch: str = DEFAULT_ARCH
    schedule: str = SCHEDULES[0]
    seed: int = 0
    patience: float = PATIENCE_S
    json: Path | None = None
    annotate: str | None = None
    watch: list[str] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)
    thread: tuple[int, ...] = (0, 0)


def read_options(arguments: Sequence[str] | None) -> Options:
    """The options of the command line; it ends with exit code 2 where they are not valid."""
    return parser().parse_args(arguments, Options())


def parser() -> ArgumentParser:
    """What the command takes. Defaults are those of Options."""
    made = ArgumentParser(
        prog="ptx-emulator",
        description="Run a CUDA kernel without a GPU: what is wrong with it, what it computes, "
        "what it costs.",
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("source", metavar="FILE", type=Path, help="a .cu or .ptx file")
    sizes = {"metavar": "X,Y,Z", "type": _sizes, "required": True}
    add("--grid", **sizes, help="blocks, as in 4,4")  # type: ignore[arg-type]
    add("--block", **sizes, help="threads of a block")  # type: ignore[arg-type]
    add("--arg", action="append", help=f"an argument, in their order: {ARGUMENT_FORMS}")
    add("--smem", type=_count, metavar="BYTES", help="of dynamic shared memory")
    add("--cluster", metavar="X,Y,Z", type=_sizes, help="blocks of a cluster")
    add("--entry", metavar="NAME", help="the kernel, where there are several: scale<float,64>")
    add("--arch", help=f"what to compile for; {DEFAULT_ARCH}")
    add("--include", "-I", action="append", type=Path, metavar="FOLDER", help="of headers")
    add("--define", "-D", action="append", metavar="NAME=TEXT", help="a macro")
    add(
        "--compare",
        metavar="FILE.py:FUNCTION",
        help="a function that gets the same arguments and changes the arrays in place",
    )
    add("--tolerance", type=float, help="allowed error, relative to the largest value")
    add("--schedule", choices=SCHEDULES, help="the order of the warps")
    add("--seed", type=_count, help="of a random schedule and of random arguments")
    add("--patience", type=float, metavar="SECONDS", help="with a loop that goes on and on")
    add("--json", type=Path, metavar="FILE", help="write what is reported; - is standard output")
    add("--annotate", choices=ANNOTATIONS, help="print findings as a workflow shows them")
    add("--watch", action="append", metavar="ARRAY[3:5]", help="tell of changes of these elements")
    add(
        "--break",
        action="append",
        dest="breaks",
        metavar="FILE:LINE",
        help="show registers and memory that a line names, whenever the thread comes by",
    )
    add("--thread", type=_thread, metavar="CTA,THREAD", help="that --break is about; 0,0")
    return made


def _sizes(text: str) -> tuple[int, ...]:
    sizes = _numbers(text)
    if not 1 <= len(sizes) <= 3 or 0 in sizes:
        raise ArgumentTypeError(f"{text!r}: pass one to three whole numbers, as in 16,16")
    return sizes


def _thread(text: str) -> tuple[int, ...]:
    numbers = _numbers(text)
    if len(numbers) != 2:
        raise ArgumentTypeError(f"{text!r}: pass the CTA and the thread, as in 0,5")
    return numbers


def _count(text: str) -> int:
    numbers = _numbers(text)
    if len(numbers) != 1:
        raise ArgumentTypeError(f"{text!r}: pass a whole number")
    return numbers[0]


def _numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them; none where that is not what the text is."""
    words = text.split(",")
    whole = all(word.isdecimal() and len(word) < 20 for word in words)
    return tuple(map(int, words)) if whole else ()
