# SPDX-License-Identifier: Apache-2.0
"""One basic block of PTX as one Python function over NumPy arrays.

    def block_7(m, s, R, K, I): ...

`m` is the machine, `s` the selection of lanes, `R` the registers that live across blocks, `K`
constant arrays, `I` special registers and parameters. Inside a block registers are locals in SSA
form. There are two versions of a block: for all lanes of the launch, where registers are rebound
without a copy, and for some, where they are gathered and scattered.
"""

from __future__ import annotations

from ptx_emulator.emit.debug import emit_hooks
from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import EMITTERS, RUN_EMITTERS, refuse
from ptx_emulator.emit.temporaries import with_deletions
from ptx_emulator.emit.wide import emit_run
from ptx_emulator.errors import EmulatorError, PtxError
from ptx_emulator.program.blocks import Block
from ptx_emulator.program.layout import Layout
from ptx_emulator.program.runs import Run, in_text_order, is_arithmetic
from ptx_emulator.ptx.model import Instruction


class BlockEmitter(Emitter):
    """Emits one version of one block."""

    def __init__(self, layout: Layout, block: Block, *, all_lanes: bool) -> None:
        super().__init__(layout, block, all_lanes=all_lanes)
        self.refusals: list[PtxError] = []

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
        body = "\n    ".join(["ix = s.index", "n = s.count", *with_deletions(self._lines)])
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
                return emit_run(self, instructions, self.emit)
            self.products.run_steps()
            emit_accesses(self, instructions, [self.block.start + place for place in run])
            return True
        except EmulatorError:
            return False

    def emit(self, instruction: Instruction) -> None:
        emitter = EMITTERS.get(instruction.parts[0])
        if emitter is None:
            raise refuse(instruction)
        if not is_arithmetic(instruction) and instruction.parts[:2] != ("wgmma", "mma_async"):
            self.products.run_steps()
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
