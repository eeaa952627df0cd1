# SPDX-License-Identifier: Apache-2.0
"""What a kernel does at a line of its source, and who changes some elements of an array."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptx_emulator.errors import UnsupportedError, shown
from ptx_emulator.program.blocks import Block, registers_of
from ptx_emulator.program.hooks import Hooks
from ptx_emulator.ptx.model import Instruction, Kernel

_WATCH = re.compile(r"(?:([fiu]\d+):)?(\w+)\[(\d+)(?::(\d+))?\]")
_BREAK = re.compile(r"(.+):(\d+)")
LINES_NAMED = 12


@dataclass(frozen=True)
class Debug:
    """What to tell of a run.

    - `watch`: elements of arrays, `out[3:5]` or `out[3]`: every change of them is told. An array is
      an argument by its name, a __device__ or a __shared__ variable; `i32:count[0]` says the type
      of a variable, which is f32 otherwise.
    - `breaks`: lines of the source, `kernel.cu:42`: whenever the thread has executed one, the
      registers and the memory that the line names are told, and what is watched.
    - `cta`, `thread`: the thread to stop, by its numbers in the grid and in the block.
    - `tell`: gets the lines.
    """

    watch: Sequence[str] = ()
    breaks: Sequence[str] = ()
    cta: int = 0
    thread: int = 0
    tell: Callable[[str], None] = print


@dataclass(frozen=True)
class Watched:
    """Elements `first` to `last - 1` of an array, as a text asks for them."""

    name: str
    first: int
    last: int
    kind: str | None

    @property
    def dtype(self) -> np.dtype[Any]:
        kind = self.kind or "f32"
        return np.dtype(f"{kind[0]}{int(kind[1:]) // 8}")


@dataclass(frozen=True)
class Stop:
    """The instructions of one block that a line of the source led to."""

    line: str
    instructions: tuple[Instruction, ...]


def read_watch(text: str) -> Watched:
    match = _WATCH.fullmatch(text.replace(" ", ""))
    if match is None:
        raise UnsupportedError(f"watch is {shown(text)}; write it as out[3:5] or i32:count[0]")
    kind, name, first, last = match.groups()
    watched = Watched(name, int(first), int(last or int(first) + 1), kind)
    if watched.first >= watched.last:
        raise UnsupportedError(f"watch is {shown(text)}, which has no element")
    return watched


def find_stops(kernel: Kernel, blocks: Sequence[Block], lines: Sequence[str]) -> dict[int, Stop]:
    """By the last instruction of a line in each block."""
    stops: dict[int, Stop] = {}
    for line in lines:
        match = _BREAK.fullmatch(line)
        if match is None:
            raise UnsupportedError(f"break is {shown(line)}; write it as kernel.cu:42")
        file, number = match[1], int(match[2])
        before = len(stops)
        for block in blocks:
            there = [i for i, each in enumerate(block.instructions) if _at(each, file, number)]
            if there:
                chosen = tuple(block.instructions[i] for i in there)
                stops[block.start + there[-1]] = Stop(line, chosen)
        if len(stops) == before:
            raise UnsupportedError(
                f"no instruction comes from {line}; those of {file} come from lines"
                f" {_lines_near(kernel, file, number) or 'of other files'}"
            )
    return stops


def hooks_of(stops: Mapping[int, Stop], *, watching: bool) -> Hooks:
    """What a program has to tell: at each stop, the registers that its instructions name."""
    named = {
        pc: tuple(
            dict.fromkeys(
                register
                for instruction in stop.instructions
                for operand in instruction.operands
                for register in registers_of(operand)
            )
        )
        for pc, stop in stops.items()
    }
    return Hooks(named, watching)


def _at(instruction: Instruction, file: str, line: int) -> bool:
    places = (instruction.location, *instruction.callers)
    return any(
        place is not None and place[1] == line and f"/{place[0]}".endswith(f"/{file}")
        for place in places
    )


def _lines_near(kernel: Kernel, file: str, line: int) -> str:
    places = (p for i in kernel.instructions for p in (i.location, *i.callers) if p is not None)
    found = {number for name, number in places if f"/{name}".endswith(f"/{file}")}
    nearest = sorted(found, key=lambda number: abs(number - line))[:LINES_NAMED]
    return ", ".join(map(str, sorted(nearest)))
