# SPDX-License-Identifier: Apache-2.0
"""Which function emits which instruction; what nobody emits is refused when a program is loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.errors import PtxError
from ptx_emulator.ptx.model import Instruction
from ptx_emulator.types import STORAGE_OF_PTX

Emit = Callable[[Emitter, Instruction, str | None], None]
EmitRun = Callable[[Emitter, Sequence[Instruction], Sequence[int]], None]

EMITTERS: dict[str, Emit] = {}
RUN_EMITTERS: dict[str, EmitRun] = {}


def emits(*names: str) -> Callable[[Emit], Emit]:
    """Register a function for instructions whose first part is one of `names`."""

    def register(emit: Emit) -> Emit:
        for name in names:
            EMITTERS[name] = emit
        return emit

    return register


def emits_run(name: str) -> Callable[[EmitRun], EmitRun]:
    """Register a function for runs of an instruction, which takes their places in the kernel."""

    def register(emit: EmitRun) -> EmitRun:
        RUN_EMITTERS[name] = emit
        return emit

    return register


def refuse(instruction: Instruction, why: str = "this instruction is not emulated") -> PtxError:
    return PtxError(f"{why}: {instruction.text}", instruction.ptx_line, instruction.source)


def expect_parts(instruction: Instruction, allowed: Collection[str]) -> None:
    """Refuse modifiers that are not known: they would change what the instruction means."""
    for part in instruction.parts[1:]:
        if part not in allowed and part not in STORAGE_OF_PTX:
            raise refuse(instruction, f"modifier .{part} is not emulated")


HALF_PRECISION = {"f16", "bf16", "f16x2", "bf16x2"}


def type_of(instruction: Instruction) -> str:
    """Storage type of the instruction's own type, its last one.

    Arithmetic in half precision is not emulated; as storage its bits would pass for integers.
    """
    for part in reversed(instruction.parts):
        if part in HALF_PRECISION:
            raise refuse(instruction, f"arithmetic in {part} is not emulated")
        if part in STORAGE_OF_PTX:
            return STORAGE_OF_PTX[part]
    raise refuse(instruction, "no type")
