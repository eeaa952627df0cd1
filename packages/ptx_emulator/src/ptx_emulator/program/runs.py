# SPDX-License-Identifier: Apache-2.0
"""Instructions of a block that do the same, gathered so that each run of them is one step.

NumPy spends more on a call than on the lanes of a launch, and compilers unroll loops: a block has
many instructions that differ in their registers alone. Arithmetic moves as far as its registers
allow. Whatever touches memory, the warp or a clock keeps its order; neighbours there that do the
same are a run if none needs the result of another. Tensor-core products keep their order among each
other and with all that touches their accumulators, so that the same products are summed together.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ptx_emulator.program.blocks import Block, registers_of
from ptx_emulator.program.ordering import STRONG
from ptx_emulator.ptx.model import Imm, Instruction, Reg, Special, Symbol
from ptx_emulator.types import TIMERS

FEWEST = 3  # a run costs as much as this many instructions
# Arithmetic whose text works on one row of lanes and on many.
WIDE = {
    *("add", "sub", "mul", "mad", "fma", "min", "max", "neg", "abs", "cvt", "setp", "selp"),
    *("and", "or", "xor", "not", "shl", "shr", "ex2", "lg2", "rcp", "sqrt", "rsqrt", "tanh"),
}
WIDE_FLOATS = {"div"}  # of floats alone
NARROW_FORMS = {"hi", "e4m3x2", "e5m2x2"}
ARITHMETIC = {
    *WIDE,
    *("mov", "cvta", "set", "div", "rem", "sad", "dp4a", "copysign", "shf", "lop3", "prmt", "bfe"),
    *("bfi", "popc", "clz", "brev", "bfind", "sin", "cos", "carry", "bmsk", "szext", "fns"),
    *("cnot", "slct", "mul24", "mad24", "dp2a", "testp", "vabsdiff4", "createpolicy"),
}
SHARED = {"shared", "shared::cta"}

Run = tuple[int, ...]  # places in the block


def in_text_order(block: Block) -> list[Run]:
    return [(place,) for place in range(len(block.instructions))]


def runs_of(block: Block) -> list[Run]:
    """The instructions of a block in the order in which they run, by what runs as one."""
    return _Planner(block).runs()


def likeness(instruction: Instruction) -> Hashable | None:
    """Equal for arithmetic that may run as one; None for what runs alone."""
    if instruction.predicate is not None or instruction.parts[0] not in WIDE | WIDE_FLOATS:
        return None
    if instruction.parts[0] in WIDE_FLOATS and instruction.parts[-1] not in ("f32", "f64"):
        return None
    if not NARROW_FORMS.isdisjoint(instruction.parts):
        return None
    destination, *sources = instruction.operands
    if not isinstance(destination, Reg):
        return None
    shape: list[Hashable] = [instruction.opcode]
    for source in sources:
        if not isinstance(source, Reg | Imm | Symbol):
            return None
        shape.append(None if isinstance(source, Reg) else source)
    return tuple(shape)


def is_arithmetic(instruction: Instruction) -> bool:
    """Whether nothing but registers matters to it."""
    if instruction.parts[0] not in ARITHMETIC:
        return False
    return not any(isinstance(o, Special) and o.name in TIMERS for o in instruction.operands)


def accesses_alike(first: Instruction, other: Instruction) -> bool:
    """Whether two accesses may be made as one."""
    if first.opcode != other.opcode or first.predicate or other.predicate:
        return False
    if first.parts[0] == "ld":
        return not SHARED.isdisjoint(first.parts) and STRONG.isdisjoint(first.parts)
    return first.parts[0] == "ldmatrix"


class _Planner:
    """What is to run, what waits for what, and what is ready."""

    def __init__(self, block: Block) -> None:
        self._instructions = instructions = block.instructions
        self._arithmetic = [is_arithmetic(instruction) for instruction in instructions]
        self._waits: list[int] = []  # how many others an instruction waits for
        self._levels: list[int] = []  # how many it waits for one after the other
        self._followers: list[list[int]] = [[] for _ in instructions]
        self._ordered: list[int] = []  # those with an effect beyond registers, latest first
        self._products: list[int] = []  # latest first
        self._alone: list[int] = []
        self._alike: dict[Hashable, list[int]] = {}
        self._link(block.effects)

    def runs(self) -> list[Run]:
        for place, waits in enumerate(self._waits):
            if waits == 0:
                self._ready(place)
        runs: list[Run] = []
        while run := self._next():
            runs.append(run)
            for place in run:
                for follower in self._followers[place]:
                    self._waits[follower] -= 1
                    if self._waits[follower] == 0:
                        self._ready(follower)
        return runs

    def _next(self) -> Run:
        """What runs next: arithmetic as soon as it can, the rest when nothing else is left."""
        if self._alone:
            return (self._alone.pop(),)
        if self._alike:
            return self._earliest()
        if self._ordered and self._waits[self._ordered[-1]] == 0:
            return self._accesses()
        return (self._products.pop(),) if self._products else ()

    def _earliest(self) -> Run:
        """Those that waited for the fewest others in a row, so that what is alike meets."""
        key = min(self._alike, key=lambda key: min(self._levels[p] for p in self._alike[key]))
        places = sorted(self._alike.pop(key))
        if len(places) >= FEWEST:
            return tuple(places)
        self._alone += reversed(places)
        return (self._alone.pop(),)

    def _accesses(self) -> Run:
        run = [self._ordered.pop()]
        first = self._instructions[run[0]]
        while self._ordered and self._waits[self._ordered[-1]] == 0:
            if not accesses_alike(first, self._instructions[self._ordered[-1]]):
                break
            run.append(self._ordered.pop())
        return tuple(run)

    def _ready(self, place: int) -> None:
        if not self._arithmetic[place]:
            return  # these are taken in order
        key = likeness(self._instructions[place])
        if key is None:
            self._alone.append(place)
        else:
            self._alike.setdefault(key, []).append(place)

    def _link(self, effects: Sequence[tuple[set[str], set[str]]]) -> None:
        """Find what every instruction waits for."""
        writer: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        accumulators = _accumulators(self._instructions)
        product: int | None = None
        touching: list[int] = []  # the accumulators, since the last product
        last = len(self._instructions) - 1
        for place, (defines, uses) in enumerate(effects):
            before = {writer[name] for name in uses | defines if name in writer}
            before |= {reader for name in defines for reader in readers.get(name, ())}
            if self._instructions[place].parts[0] == "mma":
                before.update(touching if product is None else (product, *touching))
                product, touching = place, []
                self._products.append(place)
            else:
                if accumulators and not accumulators.isdisjoint(defines | uses):
                    before.update(() if product is None else (product,))
                    touching.append(place)
                if not self._arithmetic[place]:
                    self._ordered.append(place)
            if place == last:
                before.update(range(last))
            before.discard(place)
            self._waits.append(len(before))
            self._levels.append(1 + max((self._levels[other] for other in before), default=0))
            for other in before:
                self._followers[other].append(place)
            for name in defines:
                writer[name], readers[name] = place, []
            for name in uses:
                readers.setdefault(name, []).append(place)
        self._ordered.reverse()
        self._products.reverse()


def _accumulators(instructions: Sequence[Instruction]) -> set[str]:
    return {
        name
        for instruction in instructions
        if instruction.parts[0] == "mma"
        for operand in (instruction.operands[0], instruction.operands[3])
        for name in registers_of(operand)
    }
