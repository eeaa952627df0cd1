# SPDX-License-Identifier: Apache-2.0
"""Tensor-core products, gathered until somebody looks at their accumulators.

A chain of mma on one accumulator is one deep product, and chains with the same A operands are one
wide product: sixty-four instructions become one stacked matmul. Accumulators of wgmma stay a
matrix between consecutive instructions and go back to registers when something else reads them, and
a chain of them is one deep product too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ptx_emulator.emit.rows import Rows
from ptx_emulator.emit.temporaries import Temporaries
from ptx_emulator.errors import EmulatorError

Registers = tuple[str, ...]
# Of wgmma: its size and types, what is transposed, and the sign of the product.
Shape = tuple[str, tuple[bool, bool], int]
MOST_STEPS = 8


@dataclass
class _Chain:
    """mma on one accumulator: its registers, its values before, the A and B of every step."""

    dtype: str
    before: Registers
    a_steps: list[Registers] = field(default_factory=list)
    b_steps: list[Registers] = field(default_factory=list)


@dataclass
class Steps:
    """A chain of wgmma on one accumulator, a matrix: their shape, whether the first of them adds,
    and the operands and the place of each."""

    shape: Shape
    add: str
    matrix: str
    steps: list[str]


class PendingProducts:
    """The products of a block that are not in registers yet."""

    def __init__(self, temporaries: Temporaries, rows: Rows) -> None:
        self._temporaries = temporaries
        self._rows = rows
        self._chains: dict[Registers, _Chain] = {}
        self._matrices: dict[Registers, str] = {}
        self._steps: dict[Registers, Steps] = {}  # of one accumulator at most
        self._owner: dict[str, Registers] = {}  # accumulator register -> its chain or matrix

    def mma(
        self, dtype: str, d: Registers, c: Registers, a: Registers, b: Registers, before: Registers
    ) -> None:
        """One m16n8k16 product. `d` and `c` are registers; `a`, `b` and `before` temporaries."""
        chain = self._chains.get(d)
        if chain is None or d != c or chain.dtype != dtype:
            for register in d:
                self.settle(register)
            chain = self._chains[d] = _Chain(dtype, before)
            self._owner.update(dict.fromkeys(d, d))
        chain.a_steps.append(a)
        chain.b_steps.append(b)

    def continues(self, dtype: str, d: Registers, c: Registers) -> bool:
        """Whether an mma adds to a chain, so that nobody needs its accumulator yet."""
        return d == c and d in self._chains and self._chains[d].dtype == dtype

    def start_steps(self, registers: Registers, steps: Steps) -> None:
        """A wgmma, and the start of a chain."""
        self._steps[registers] = steps
        self._owner.update(dict.fromkeys(registers, registers))

    def continue_steps(self, registers: Registers, shape: Shape, step: str) -> bool:
        """Add a wgmma to the chain, if it is one on the same accumulators."""
        chain = self._steps.get(registers)
        if chain is None or chain.shape != shape or len(chain.steps) == MOST_STEPS:
            return False
        chain.steps.append(step)
        return True

    def run_steps(self) -> None:
        """Emit the chain of wgmma, before anything that may not come ahead of it."""
        for registers, chain in self._steps.items():
            of, (trans_a, trans_b), sign = chain.shape
            steps = f"({', '.join(chain.steps)},)"
            given = f"{of}, {steps}, {chain.add}, {trans_a}, {trans_b}, {chain.matrix}, {sign}"
            call = f"m.wgmma.multiply_steps({given})"
            self.keep_matrix(registers, self._temporaries.temporary(call, "f32"))
        self._steps = {}

    def matrix(self, registers: Registers) -> str | None:
        """The matrix that stands for these wgmma accumulators, if there is one."""
        return self._matrices.get(registers)

    def keep_matrix(self, registers: Registers, name: str) -> None:
        self._matrices[registers] = name
        self._owner.update(dict.fromkeys(registers, registers))

    def settle(self, register: str) -> None:
        """Put the product that owns `register` into registers."""
        owner = self._owner.get(register)
        if owner is None:
            return
        if owner in self._steps:
            self.run_steps()
        if owner in self._matrices:
            self._settle_matrix(owner)
        else:
            self._settle_chains()

    def settle_all(self) -> None:
        self.run_steps()
        self._settle_chains()
        for registers in list(self._matrices):
            self._settle_matrix(registers)

    def _settle_matrix(self, registers: Registers) -> None:
        matrix, count = self._matrices.pop(registers), len(registers)
        values = self._temporaries.temporary(f"m.wgmma.scatter(s, {matrix}, {count})", "f32")
        self._bind(registers, self._rows.of(values, count, "f32"))

    def _settle_chains(self) -> None:
        alike: dict[tuple[str, tuple[Registers, ...]], list[tuple[Registers, _Chain]]] = {}
        for registers, chain in self._chains.items():
            alike.setdefault((chain.dtype, tuple(chain.a_steps)), []).append((registers, chain))
        self._chains = {}
        for (dtype, a_steps), chains in alike.items():
            self._emit_product(dtype, a_steps, chains)

    def _emit_product(
        self, dtype: str, a_steps: tuple[Registers, ...], chains: list[tuple[Registers, _Chain]]
    ) -> None:
        stacked = self._rows.stacked
        a = stacked([name for step in a_steps for name in step])
        b = stacked([name for _, chain in chains for step in chain.b_steps for name in step])
        before = [name for _, chain in chains for name in chain.before]
        c = before[0] if len(set(before)) == 1 else stacked(before)
        call = f"m.matrix.mma(s, {dtype!r}, {len(a_steps)}, {a}, {b}, {c})"
        values = self._temporaries.temporary(call, "f32")
        names = self._rows.of(values, 4 * len(chains), "f32")
        for index, (registers, _) in enumerate(chains):
            self._bind(registers, names[4 * index : 4 * index + 4])

    def _bind(self, registers: Registers, names: list[str]) -> None:
        if len(registers) != len(names):
            raise EmulatorError(f"{len(registers)} accumulators for {len(names)} values")
        for register, name in zip(registers, names, strict=True):
            self._owner.pop(register, None)
            self._temporaries.bind(register, name)
