# SPDX-License-Identifier: Apache-2.0
"""Comparison and selection: setp, set, selp."""

from __future__ import annotations

from flash_attention.emulator.emit.block import BlockEmitter
from flash_attention.emulator.emit.registry import emits, refuse, type_of
from flash_attention.emulator.ptx.model import Instruction, Pair
from flash_attention.emulator.types import STORAGE_OF_PTX

ORDERED = {
    "eq": "({a} == {b})",
    "ne": "({a} != {b})",
    "lt": "({a} < {b})",
    "le": "({a} <= {b})",
    "gt": "({a} > {b})",
    "ge": "({a} >= {b})",
    "lo": "({a} < {b})",
    "ls": "({a} <= {b})",
    "hi": "({a} > {b})",
    "hs": "({a} >= {b})",
}
# True also when an operand is NaN; `ne` of floats is true only when neither is.
UNORDERED = {
    "equ": "~(({a} < {b}) | ({a} > {b}))",
    "neu": "({a} != {b})",
    "ltu": "~({a} >= {b})",
    "leu": "~({a} > {b})",
    "gtu": "~({a} <= {b})",
    "geu": "~({a} < {b})",
    "num": "(({a} == {a}) & ({b} == {b}))",
    "nan": "(({a} != {a}) | ({b} != {b}))",
}
COMBINE = {"and": "&", "or": "|", "xor": "^"}


@emits("setp")
def set_predicate(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> None:
    _, comparison, *rest = instruction.parts
    storage = STORAGE_OF_PTX[rest[-1]]
    if "ftz" in rest and storage != "f32":
        raise refuse(instruction)
    a = emitter.array(instruction.operands[1], storage)
    b = emitter.value(instruction.operands[2], storage)
    form = {**ORDERED, **UNORDERED}[comparison]
    if comparison == "ne" and storage[0] == "f":
        form = "(({a} < {b}) | ({a} > {b}))"
    result = form.format(a=a, b=b)
    combine = next((part for part in rest if part in COMBINE), None)
    if combine is not None:
        result = f"({result} {COMBINE[combine]} {emitter.read(instruction.operands[3], 'b1')})"
    destination = instruction.operands[0]
    if isinstance(destination, Pair):
        if combine is not None:
            raise refuse(instruction)
        name = emitter.temporary(result, "b1")
        emitter.write(destination.first, name, "b1", predicate)
        emitter.write(destination.second, f"(~{name})", "b1", predicate)
    else:
        emitter.write(destination, result, "b1", predicate)


@emits("selp")
def select(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> None:
    storage = type_of(instruction)
    destination, *values, chooser = instruction.operands
    a, b = (emitter.value(value, storage) for value in values)
    expression = f"np.where({emitter.read(chooser, 'b1')}, {a}, {b})"
    emitter.write(destination, expression, storage, predicate)
