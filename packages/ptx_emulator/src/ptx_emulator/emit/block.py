# SPDX-License-Identifier: Apache-2.0
"""One basic block of PTX as one Python function over NumPy arrays.

    def block_7(m, s, R, K, I): ...

`m` is the machine, `s` the selection of lanes, `R` the registers that live across blocks, `K`
constant arrays, `I` special registers and parameters. Inside a block registers are locals in SSA
form. There are two versions of a block: for all lanes of the launch, where registers are rebound
without a copy, and for some, where they are gathered and scattered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ptx_emulator.emit.debug import emit_hooks
from ptx_emulator.emit.products import PendingProducts
from ptx_emulator.emit.registry import EMITTERS, RUN_EMITTERS, refuse
from ptx_emulator.emit.wide import Rows, emit_run
from ptx_emulator.errors import EmulatorError, PtxError
from ptx_emulator.program.blocks import Block
from ptx_emulator.program.runs import Run, in_text_order
from ptx_emulator.ptx.model import (
    Imm,
    Instruction,
    Memory,
    Negated,
    Operand,
    Reg,
    Sink,
    Special,
    Symbol,
)
from ptx_emulator.types import (
    SPECIAL_REGISTERS,
    STORAGE_OF_PTX,
    TIMERS,
    numpy_name,
    size_of,
)

if TYPE_CHECKING:
    from ptx_emulator.program.program import Layout


class BlockEmitter:
    """Emits one version of one block."""

    def __init__(self, layout: Layout, block: Block, *, all_lanes: bool) -> None:
        self.layout = layout
        self.block = block
        self.all_lanes = all_lanes
        self.pc = block.start
        self.result: str | None = None  # what the function returns to the scheduler
        self.refusals: list[PtxError] = []
        self.products = PendingProducts(self)
        self._lines: list[str] = []
        self._count = 0
        self._types: dict[str, str] = {}
        self._current: dict[str, str] = {}  # register -> the temporary that holds it
        self._views: dict[tuple[str, str], str] = {}
        self._borrowed: set[str] = set()  # temporaries that share memory with something else
        self.rows = Rows(self)
        self._wide: dict[str, str] = {}  # registers that stand for many, and their storage

    # Temporaries.

    def line(self, text: str) -> None:
        self._lines.append(text)

    def names(self, count: int, storage: str) -> list[str]:
        """Fresh names, to be assigned by the caller's own line."""
        fresh = [f"t{self._count + i}" for i in range(count)]
        self._count += count
        for name in fresh:
            self._types[name] = storage
        return fresh

    def declare(self, name: str, storage: str) -> None:
        """An expression that may stand for a temporary."""
        self._types[name] = storage

    def storage_of(self, name: str) -> str:
        return self._types[name]

    def is_temporary(self, name: str) -> bool:
        return name in self._types

    def temporary(self, expression: str, storage: str, *, borrowed: bool = False) -> str:
        (name,) = self.names(1, storage)
        self.line(f"{name} = {expression}")
        if borrowed:
            self._borrowed.add(name)
        return name

    def borrow(self, names: Iterable[str]) -> None:
        """These temporaries are views of one array: a copy is stored, not they themselves."""
        self._borrowed.update(names)

    def cast(self, name: str, storage: str) -> str:
        """The same bits under another type; a wider register gives its low part."""
        have = self._types[name]
        if have == storage:
            return name
        key = (name, storage)
        if key not in self._views:
            if size_of(have) != size_of(storage):
                narrow = f"u{8 * size_of(storage)}"
                wide = self.cast(name, f"u{8 * size_of(have)}")
                low = self.temporary(f"{wide}.astype({numpy_name(narrow)})", narrow)
                self._views[key] = self.cast(low, storage)
            else:
                self._views[key] = self.temporary(
                    f"{name}.view({numpy_name(storage)})", storage, borrowed=True
                )
        return self._views[key]

    # Operands.

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

    def bind(self, register: str, name: str) -> None:
        self._current[register] = name

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

    # The whole block.

    def source(self) -> str:
        """The function's text."""
        hooked = bool(self.layout.hooks.stops) or self.layout.hooks.watching
        for run in in_text_order(self.block) if hooked else self.layout.runs(self.block):
            if len(run) == 1 or not self._emit_as_one(run):
                for place in run:
                    self._emit_alone(place)
        self.products.settle_all()
        self._store_registers()
        if self.result is not None:
            self.line(f"return {self.result}")
        body = "\n    ".join(["ix = s.index", "n = s.count", *self._lines])
        return f"def {self.function_name}(m, s, R, K, I):\n    {body}\n"

    @property
    def function_name(self) -> str:
        return f"block_{self.block.index}" + ("" if self.all_lanes else "_some")

    def _emit_alone(self, place: int) -> None:
        instruction = self.block.instructions[place]
        self.pc = self.block.start + place
        try:
            self.emit(instruction)
            emit_hooks(self, instruction)
        except PtxError as refusal:
            self.refusals.append(refusal)

    def _emit_as_one(self, run: Run) -> bool:
        """Emit a run; False where each instruction is to be emitted by itself."""
        self.pc = self.block.start + run[0]
        instructions = [self.block.instructions[place] for place in run]
        emit_accesses = RUN_EMITTERS.get(instructions[0].parts[0])
        try:
            if emit_accesses is None:
                return emit_run(self, instructions)
            emit_accesses(self, instructions, [self.block.start + place for place in run])
            return True
        except EmulatorError:
            return False

    def emit(self, instruction: Instruction) -> None:
        emitter = EMITTERS.get(instruction.parts[0])
        if emitter is None:
            raise refuse(instruction)
        predicate = None
        if instruction.predicate is not None:
            predicate = self.read(instruction.predicate, "b1")
            if instruction.negated:
                predicate = self.temporary(f"~{predicate}", "b1")
        try:
            emitter(self, instruction, predicate)
        except PtxError:
            raise
        except EmulatorError as error:
            raise refuse(instruction, str(error)) from error
        except (IndexError, KeyError, ValueError, StopIteration) as error:
            raise refuse(instruction, f"this form is not emulated ({error!r})") from error

    def _store_registers(self) -> None:
        stored: set[str] = set()
        stores = []
        for register in sorted(self.block.live_out & self.block.defines):
            if register not in self._current:
                continue
            name = self.cast(self._current[register], self.register_storage(register))
            slot = self.layout.slots[register]
            if not self.all_lanes:
                stores.append(f"R[{slot}][ix] = {name}")
            elif name in self._borrowed or name in stored:
                stores.append(f"R[{slot}] = {name}.copy()")
            else:
                stores.append(f"R[{slot}] = {name}")
            stored.add(name)
        self._lines += stores
