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

PACKED = {"f16x2": "f16", "bf16x2": "bf16"}
TESTS = {
    "finite": "np.isfinite({x})",
    "infinite": "np.isinf({x})",
    "number": "~np.isnan({x})",
    "notanumber": "np.isnan({x})",
    "normal": "(np.isfinite({x}) & (np.abs({x}) >= np.finfo({x}.dtype).tiny))",
    "subnormal": "(({x} != 0) & (np.abs({x}) < np.finfo({x}.dtype).tiny))",
}
# What `set` writes where the comparison holds, by its type.
TRUE = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}


@emits("testp")
def test_number(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    value = emitter.array(instruction.operands[1], type_of(instruction))
    expression = TESTS[instruction.parts[1]].format(x=value)
    emitter.write(instruction.operands[0], expression, "b1", predicate)


@emits("setp")
def set_predicate(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if instruction.parts[-1] in PACKED:
        low, high = _packed_comparisons(emitter, instruction)
        write_pair(emitter, instruction.operands[0], low, "b1", high, predicate)
        return
    result = _comparison(emitter, instruction)
    write_pair(emitter, instruction.operands[0], result, "b1", f"(~{result})", predicate)


@emits("set")
def set_number(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """Like setp, with a number for an answer: 1.0, or all ones for an integer."""
    target = instruction.parts[-2]
    if instruction.parts[-1] in PACKED:
        ones = TRUE[PACKED[target]] if target in PACKED else 0xFFFF
        low, high = _packed_comparisons(emitter, instruction)
        expression = f"np.where({low}, np.uint32({ones}), np.uint32(0))"
        expression += f" | np.where({high}, np.uint32({ones} << 16), np.uint32(0))"
        emitter.write(instruction.operands[0], f"({expression})", "u32", predicate)
        return
    storage = "u16" if target in ("f16", "bf16") else "u32"
    yes, no = (emitter.layout.scalar_name(storage, bits) for bits in (TRUE[target], 0))
    expression = f"np.where({_comparison(emitter, instruction)}, {yes}, {no})"
    emitter.write(instruction.operands[0], expression, storage, predicate)


def _comparison(emitter: Emitter, instruction: Instruction) -> str:
    """The answer of a comparison, combined with a predicate where there is one."""
    comparison, *rest = instruction.parts[1:]
    storage = STORAGE_OF_PTX[rest[-1]]
    if "ftz" in rest and storage != "f32":
        raise refuse(instruction)
    a = emitter.array(instruction.operands[1], storage)
    b = emitter.value(instruction.operands[2], storage)
    if rest[-1] == "bf16":
        a, b, storage = f"numerics.bf16_to_f32({a})", f"numerics.bf16_to_f32({b})", "f32"
    a, b = flushed(instruction, a), flushed(instruction, b)
    result = _compared(comparison, a, b, storage)
    if isinstance(instruction.operands[0], Pair) and not COMBINE.keys().isdisjoint(rest):
        raise refuse(instruction)
    return _combined(emitter, instruction, result)


def _compared(comparison: str, a: str, b: str, storage: str) -> str:
    form = {**ORDERED, **UNORDERED}[comparison]
    if comparison == "ne" and storage[0] == "f":
        form = "(({a} < {b}) | ({a} > {b}))"
    return form.format(a=a, b=b)


def _combined(emitter: Emitter, instruction: Instruction, result: str) -> str:
    combine = next((part for part in instruction.parts if part in COMBINE), None)
    if combine is None:
        return result
    return f"({result} {COMBINE[combine]} {emitter.read(instruction.operands[3], 'b1')})"


def _packed_comparisons(emitter: Emitter, instruction: Instruction) -> list[str]:
    """The answers for the lower and the upper of two 16-bit floats."""
    if "ftz" in instruction.parts:
        raise refuse(instruction)
    dtype = PACKED[instruction.parts[-1]]
    words = [emitter.array(operand, "u32") for operand in instruction.operands[1:3]]
    pairs = [emitter.temporary(f"numerics.elements({word}, {dtype!r})", "f32") for word in words]
    a, b = pairs
    answers = (
        _compared(instruction.parts[1], f"{a}[..., {half}]", f"{b}[..., {half}]", "f32")
        for half in (0, 1)
    )
    return [_combined(emitter, instruction, answer) for answer in answers]


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
