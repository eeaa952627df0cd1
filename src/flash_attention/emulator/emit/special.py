# SPDX-License-Identifier: Apache-2.0
"""Approximate functions: ex2, lg2, rcp, sqrt, rsqrt, tanh. Each is NumPy's single-precision result,
from which the hardware may differ by the ulp that the PTX ISA grants."""

from __future__ import annotations

from flash_attention.emulator.emit.arithmetic import finish, flushed
from flash_attention.emulator.emit.block import BlockEmitter
from flash_attention.emulator.emit.registry import emits, expect_parts, refuse, type_of
from flash_attention.emulator.ptx.model import Instruction

FUNCTIONS = {
    "ex2": "np.exp2({x})",
    "lg2": "np.log2({x})",
    "rcp": "np.reciprocal({x})",
    "sqrt": "np.sqrt({x})",
    "rsqrt": "np.reciprocal(np.sqrt({x}))",
    "tanh": "np.tanh({x})",
    "sin": "np.sin({x})",
    "cos": "np.cos({x})",
}


@emits(*FUNCTIONS)
def approximate(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"approx", "ftz", "rn"})
    if type_of(instruction) != "f32":
        raise refuse(instruction)
    x = flushed(instruction, emitter.array(instruction.operands[1], "f32"))
    expression = FUNCTIONS[instruction.parts[0]].format(x=x)
    finish(emitter, instruction, expression, "f32", predicate)
