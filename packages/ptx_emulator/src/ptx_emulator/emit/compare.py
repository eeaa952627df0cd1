# SPDX-License-Identifier: Apache-2.0
"""Comparison and selection: setp, set, selp."""

from __future__ import annotations

from ptx_emulator.emit.arithmetic import flushed
from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, refuse, type_of
from ptx_emulator.ptx.model import Instruction, Operand, Pair
from ptx_emulator.types import STORAGE_OF_PTX

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


# What `set` writes where the comparison holds, by its type.
TRUE = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}


@emits("setp")
def set_predicate(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    result = _comparison(emitter, instruction)
    write_pair(emitter, instruction.operands[0], result, "b1", f"(~{result})", predicate)


@emits("set")
def set_number(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """Like setp, with a number for an answer: 1.0, or all ones for an integer."""
    target = instruction.parts[-2]
    storage = "u16" if target in ("f16", "bf16") else "u32"
    yes, no = (emitter.layout.scalar_name(storage, bits) for bits in (TRUE[target], 0))
    expression = f"np.where({_comparison(emitter, instruction)}, {yes}, {no})"
    emitter.write(instruction.operands[0], expression, storage, predicate)


def _comparison(emitter: Emitter, instruction: Instruction) -> str:
    """The answer of a comparison, combined with a predicate where there is one."""
    _, comparison, *rest = instruction.parts
    storage = STORAGE_OF_PTX[rest[-1]]
    if ("ftz" in rest and storage != "f32") or rest[-1] in ("f16x2", "bf16x2"):
        raise refuse(instruction)
    a = emitter.array(instruction.operands[1], storage)
    b = emitter.value(instruction.operands[2], storage)
    if rest[-1] == "bf16":
        a, b, storage = f"numerics.bf16_to_f32({a})", f"numerics.bf16_to_f32({b})", "f32"
    a, b = flushed(instruction, a), flushed(instruction, b)
    form = {**ORDERED, **UNORDERED}[comparison]
    if comparison == "ne" and storage[0] == "f":
        form = "(({a} < {b}) | ({a} > {b}))"
    result = form.format(a=a, b=b)
    combine = next((part for part in rest if part in COMBINE), None)
    if combine is not None:
        result = f"({result} {COMBINE[combine]} {emitter.read(instruction.operands[3], 'b1')})"
        if isinstance(instruction.operands[0], Pair):
            raise refuse(instruction)
    return result


@emits("selp")
def select(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    storage = type_of(instruction)
    destination, *values, chooser = instruction.operands
    a, b = (emitter.value(value, storage) for value in values)
    expression = f"np.where({emitter.read(chooser, 'b1')}, {a}, {b})"
    emitter.write(destination, expression, storage, predicate)


def write_pair(
    emitter: Emitter,
    destination: Operand,
    value: str,
    storage: str,
    beside: str,
    predicate: str | None,
) -> None:
    """Bind a register to a value and, where the destination is a pair, the predicate beside it."""
    if isinstance(destination, Pair):
        emitter.write(destination.second, beside, "b1", predicate)
        destination = destination.first
    emitter.write(destination, value, storage, predicate)
