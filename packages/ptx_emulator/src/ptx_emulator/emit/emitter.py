# SPDX-License-Identifier: Apache-2.0
"""What an instruction is emitted with: its operands as expressions, its results in registers."""

from __future__ import annotations

from ptx_emulator.emit.products import PendingProducts
from ptx_emulator.emit.rows import Rows
from ptx_emulator.emit.temporaries import Temporaries
from ptx_emulator.errors import EmulatorError
from ptx_emulator.program.blocks import Block
from ptx_emulator.program.layout import Layout
from ptx_emulator.ptx.model import Imm, Memory, Negated, Operand, Reg, Sink, Special, Symbol
from ptx_emulator.types import SPECIAL_REGISTERS, STORAGE_OF_PTX, TIMERS, numpy_name, size_of


class Emitter(Temporaries):
    """The text of one version of one block, and where its registers are."""

    def __init__(self, layout: Layout, block: Block, *, all_lanes: bool) -> None:
        super().__init__()
        self.layout = layout
        self.block = block
        self.all_lanes = all_lanes
        self.pc = block.start
        self.result: str | None = None  # what the function returns to the scheduler
        self.rows = Rows(self)
        self.products = PendingProducts(self, self.rows)
        self._wide: dict[str, str] = {}  # registers that stand for many, and their storage

    def read(self, operand: Operand, storage: str) -> str:
        """An expression for the operand: a temporary, or a literal for an immediate."""
        match operand:
            case Reg(name):
                return self.cast(self.current(name), storage)
            case Negated(inner):
                return self.temporary(f"~{self.read(inner, 'b1')}", "b1")
            case Special(name):
                return self.cast(self.special(name), storage)
            case Symbol(name):
                return self._symbol(name, storage)
            case Imm(bits, kind):
                return self._literal(bits, kind, storage)
        raise EmulatorError(f"operand {operand} cannot be read")

    def array(self, operand: Operand, storage: str) -> str:
        """Like `read`, but always an array."""
        if isinstance(operand, Imm):
            return self.constant(storage, operand.bits)
        return self.read(operand, storage)

    def value(self, operand: Operand, storage: str) -> str:
        """Like `read`, but an immediate has its type: where NumPy would infer another."""
        if isinstance(operand, Imm):
            return self.layout.scalar_name(storage, operand.bits)
        return self.read(operand, storage)

    def constant(self, storage: str, bits: int) -> str:
        """An array of one value."""
        slot = self.layout.constant_slot(storage, bits)
        expression = f"K[{slot}]" if self.all_lanes else f"K[{slot}][:n]"
        return self.temporary(expression, storage, borrowed=True)

    def address(self, memory: Operand, storage: str) -> str:
        if not isinstance(memory, Memory):
            raise EmulatorError(f"{memory} is no address")
        if isinstance(memory.base, Symbol) and memory.base.name not in self.layout.module:
            base = self.layout.symbol_address(memory.base.name)
            return self.constant(storage, base + memory.offset)
        base_name = self.array(memory.base, storage)
        if not memory.offset:
            return base_name
        offset = memory.offset % (1 << 8 * size_of(storage))
        return self.temporary(f"{base_name} + {numpy_name(storage)}({offset})", storage)

    def parameter(self, type_name: str, offset: int) -> str:
        storage = STORAGE_OF_PTX[type_name]
        self.layout.param_reads.add((type_name, offset))
        return self._input(repr(("param", type_name, offset)), storage)

    def write(
        self, operand: Operand, expression: str, storage: str, predicate: str | None = None
    ) -> None:
        """Bind a register to a value; under a predicate, the other lanes keep the old one."""
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Reg):
            raise EmulatorError(f"{operand} cannot be written")
        self.products.settle(operand.name)
        if predicate is not None:
            old = self.cast(self.current(operand.name), storage)
            expression = f"np.where({predicate}, {expression}, {old})"
        known = expression in self._types
        self.bind(operand.name, expression if known else self.temporary(expression, storage))
        if known:
            self._borrowed.add(expression)

    def wide_register(self, storage: str) -> str:
        """A register of which every lane has many."""
        name = f"wide {len(self._wide)}"
        self._wide[name] = storage
        return name

    def register_storage(self, register: str) -> str:
        if register in self._wide:
            return self._wide[register]
        return STORAGE_OF_PTX[self.layout.kernel.registers[register]]

    def current(self, register: str) -> str:
        """The temporary that holds a register."""
        self.products.settle(register)
        if register not in self._current:
            storage = self.register_storage(register)
            slot = self.layout.slots.get(register)
            if slot is None:  # never written: PTX leaves the value open
                self._current[register] = self.constant(storage, 0)
            else:
                expression = f"R[{slot}]" if self.all_lanes else f"R[{slot}][ix]"
                if not self.all_lanes and register in self.block.defines:
                    expression += ".copy()"  # else a view, which the block's stores would change
                self._current[register] = self.temporary(expression, storage, borrowed=True)
        return self._current[register]

    def _symbol(self, name: str, storage: str) -> str:
        """An address. Variables of the module get theirs when the kernel is launched."""
        if name in self.layout.module:
            return self.cast(self._input(repr(("symbol", name)), "u64"), storage)
        return self.constant(storage, self.layout.symbol_address(name))

    def special(self, name: str) -> str:
        if name in TIMERS:
            return self.temporary(f"m.read_timer(s, {TIMERS[name]})", "u64")
        if name not in SPECIAL_REGISTERS:
            raise EmulatorError(f"%{name} is not emulated")
        self.layout.special_registers.add(name)
        return self._input(repr(name), "u32")

    def _input(self, key: str, storage: str) -> str:
        expression = f"I[{key}]" if self.all_lanes else f"I[{key}][ix]"
        return self.temporary(expression, storage, borrowed=True)

    def _literal(self, bits: int, kind: str, storage: str) -> str:
        if kind != "int" or storage[0] == "f":
            return self.layout.scalar_name(storage, bits)
        width = 8 * size_of(storage) if storage != "b1" else 1
        value = bits % (1 << width)
        if storage[0] == "i" and value >> (width - 1):
            value -= 1 << width
        return str(value)
