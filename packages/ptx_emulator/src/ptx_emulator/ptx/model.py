# SPDX-License-Identifier: Apache-2.0
"""The parsed form of PTX: operands, instructions and kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ptx_emulator.ptx.deferred import Deferred


@dataclass(frozen=True)
class _Named:
    name: str


class Reg(_Named):
    """A register; the name is unique in the kernel, whatever scope declared it."""


class Special(_Named):
    """A read-only register of the machine, without the percent sign: `tid.x`, `laneid`."""


class Symbol(_Named):
    """The name of a parameter or of a variable in shared, global or local memory."""


class Label(_Named):
    """A place to jump to; a key of `Kernel.labels`."""


class Imm(NamedTuple):
    """A constant. Kind `int` holds the value; `f32` and `f64` hold the bits of the float."""

    bits: int
    kind: str


class Vector(NamedTuple):
    """A brace list: `{%r1, %r2}`."""

    items: tuple[Operand, ...]


class Memory(NamedTuple):
    """An address: `[base+offset, {c0, c1}]`, with the coordinates flattened."""

    base: Operand
    offset: int
    coords: tuple[Operand, ...]


class Negated(NamedTuple):
    """A predicate operand read as its opposite: `!%p1`."""

    operand: Operand


class Pair(NamedTuple):
    """Two destinations: `%r1|%p1`."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Sink:
    """A destination that is thrown away: `_`."""


Operand = Reg | Special | Imm | Symbol | Vector | Memory | Negated | Pair | Sink | Label


@dataclass
class Instruction:
    """One instruction; `parts` is the opcode cut at its dots, `shared::cta` being one part.

    `location` is its place in the CUDA source, `callers` where the function it is in was inlined,
    from the nearest to the kernel's own line.
    """

    opcode: str
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    predicate: Reg | None
    negated: bool
    ptx_line: int
    location: tuple[str, int] | None
    text: str
    callers: tuple[tuple[str, int], ...] = ()

    @property
    def source(self) -> str | None:
        """`file:line` of the CUDA text, and of all its callers."""
        if self.location is None:
            return None
        places = (self.location, *self.callers)
        return ", called from ".join(f"{file}:{line}" for file, line in places)

    @property
    def place(self) -> str:
        """Its lines in PTX and in CUDA."""
        return f"PTX line {self.ptx_line}" + (f" ({self.source})" if self.source else "")


@dataclass
class Param:
    """One kernel parameter and where it lies in the parameter block, in bytes."""

    name: str
    type: str
    size: int
    align: int
    offset: int


@dataclass
class Variable:
    """A variable in memory; `size` is None for the dynamic (extern) one in shared memory.

    `data` is what a variable of the module holds before the first launch.
    """

    name: str
    align: int
    size: int | None
    space: str = "shared"
    data: bytes = b""


@dataclass
class Kernel(Deferred):
    """One `.entry`; `labels` maps to the index of the instruction that follows the label."""

    LATER = frozenset({"instructions", "labels", "registers"})

    name: str
    params: tuple[Param, ...]
    registers: dict[str, str]
    shared: tuple[Variable, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    max_threads: int | None
    target: str
    local: tuple[Variable, ...] = ()
    module: tuple[Variable, ...] = ()  # in global and constant memory
    cluster: tuple[int, int, int] | None = None  # CTAs of a cluster
    register_limit: int | None = None  # of a thread at launch, if the directives say
