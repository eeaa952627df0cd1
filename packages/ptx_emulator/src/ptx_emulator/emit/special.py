# SPDX-License-Identifier: Apache-2.0
"""Approximate functions: ex2, lg2, rcp, sqrt, rsqrt, tanh. Each is NumPy's result,
from which the hardware may differ by the ulp that the PTX ISA grants."""

from __future__ import annotations

from ptx_emulator.emit.arithmetic import directed, flushed
from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, expect_parts, refuse, type_of
from ptx_emulator.ptx.model import Instruction

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
def approximate(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if directed(emitter, instruction, predicate):
        return
    expect_parts(instruction, {"approx", "ftz", "rn"})
    storage = type_of(instruction)
    x = emitter.array(instruction.operands[1], storage)
    if storage == "f32":
        x = flushed(instruction, x)
    elif storage != "f64":
        raise refuse(instruction)
    expression = FUNCTIONS[instruction.parts[0]].format(x=x)
    if storage == "f32":
        expression = flushed(instruction, expression)
    emitter.write(instruction.operands[0], expression, storage, predicate)
