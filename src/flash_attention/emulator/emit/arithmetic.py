# SPDX-License-Identifier: Apache-2.0
"""Integer and floating-point arithmetic: add, sub, mul, mad, fma, min, max, div, rem, neg, abs."""

from __future__ import annotations

from flash_attention.emulator.emit.block import BlockEmitter
from flash_attention.emulator.emit.registry import emits, expect_parts, refuse, type_of
from flash_attention.emulator.ptx.model import Imm, Instruction, Operand
from flash_attention.emulator.types import numpy_name, size_of

FLOAT_MODIFIERS = {"rn", "ftz"}
OPERATORS = {"add": "+", "sub": "-"}
PACKED = {"f16x2": "f16", "bf16x2": "bf16"}
PACKED_OPERATIONS = {"add": "add_16", "sub": "subtract_16", "mul": "multiply_16", "fma": "fma_16"}
WIDER = {"i16": "i32", "u16": "u32", "i32": "i64", "u32": "u64"}


def flushed(instruction: Instruction, name: str) -> str:
    """The operand with subnormals made zero, if the instruction says .ftz."""
    return f"numerics.flush({name})" if "ftz" in instruction.parts else name


def operands(emitter: BlockEmitter, instruction: Instruction, storage: str) -> list[str]:
    """The sources, at least one of them an array."""
    sources = instruction.operands[1:]
    names = [emitter.read(source, storage) for source in sources]
    if all(isinstance(source, Imm) for source in sources):
        names[0] = emitter.array(sources[0], storage)
    if storage[0] == "f":
        names = [flushed(instruction, name) for name in names]
    return names


def finish(
    emitter: BlockEmitter,
    instruction: Instruction,
    expression: str,
    storage: str,
    predicate: str | None,
) -> None:
    if storage[0] == "f":
        expression = flushed(instruction, expression)
    emitter.write(instruction.operands[0], expression, storage, predicate)


def _packed(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> bool:
    """Emit arithmetic on two 16-bit floats in a word; False for every other type."""
    dtype = PACKED.get(instruction.parts[-1])
    if dtype is None:
        return False
    expect_parts(instruction, {"rn"})
    name = instruction.parts[0]
    words = ", ".join(emitter.array(source, "u32") for source in instruction.operands[1:])
    expression = f"numerics.packed(numerics.{PACKED_OPERATIONS[name]}, {dtype!r}, {words})"
    emitter.write(instruction.operands[0], expression, "u32", predicate)
    return True


@emits("add", "sub")
def add_or_sub(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> None:
    if _packed(emitter, instruction, predicate):
        return
    expect_parts(instruction, FLOAT_MODIFIERS)
    storage = type_of(instruction)
    a, b = operands(emitter, instruction, storage)
    operator = OPERATORS[instruction.parts[0]]
    finish(emitter, instruction, f"({a} {operator} {b})", storage, predicate)


def widened(emitter: BlockEmitter, operand: Operand, storage: str, wide: str) -> str:
    name = emitter.read(operand, storage)
    return name if isinstance(operand, Imm) else f"{name}.astype({numpy_name(wide)})"


@emits("mul", "mad")
def multiply(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> None:
    if _packed(emitter, instruction, predicate):
        return
    expect_parts(instruction, {"lo", "hi", "wide"} | FLOAT_MODIFIERS)
    storage = type_of(instruction)
    if storage[0] == "f":
        if instruction.parts[0] == "mad":
            raise refuse(instruction)
        a, b = operands(emitter, instruction, storage)
        finish(emitter, instruction, f"({a} * {b})", storage, predicate)
        return
    first, second, *third = instruction.operands[1:]
    result = WIDER[storage] if "wide" in instruction.parts else storage
    if "wide" in instruction.parts:
        product = _wide_product(emitter, first, second, storage)
    elif "hi" in instruction.parts:
        if storage not in ("i32", "u32"):
            raise refuse(instruction)
        product = f"({_wide_product(emitter, first, second, storage)} >> 32)"
        product = f"{product}.astype({numpy_name(storage)})"
    else:
        product = f"({emitter.array(first, storage)} * {emitter.read(second, storage)})"
    if third:
        product = f"({product} + {emitter.read(third[0], result)})"
    emitter.write(instruction.operands[0], product, result, predicate)


def _wide_product(emitter: BlockEmitter, first: Operand, second: Operand, storage: str) -> str:
    wide = WIDER[storage]
    a = f"{emitter.array(first, storage)}.astype({numpy_name(wide)})"
    return f"({a} * {widened(emitter, second, storage, wide)})"


@emits("fma")
def fused_multiply_add(
    emitter: BlockEmitter, instruction: Instruction, predicate: str | None
) -> None:
    if _packed(emitter, instruction, predicate):
        return
    expect_parts(instruction, FLOAT_MODIFIERS)
    storage = type_of(instruction)
    if storage != "f32":
        raise refuse(instruction)
    a, b, c = (
        flushed(instruction, emitter.array(source, storage)) for source in instruction.operands[1:]
    )
    finish(emitter, instruction, f"numerics.fma({a}, {b}, {c})", storage, predicate)


NUMBER_OF_TWO = {"min": "numerics.smaller", "max": "numerics.larger"}


@emits("min", "max")
def extremum(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> None:
    if instruction.parts == ("max", "NaN", "f16x2"):
        a, b = (emitter.array(source, "u32") for source in instruction.operands[1:])
        expression = f"numerics.packed(numerics.larger_or_nan, 'f16', {a}, {b})"
        emitter.write(instruction.operands[0], expression, "u32", predicate)
        return
    expect_parts(instruction, {"ftz"})
    storage = type_of(instruction)
    a, b = operands(emitter, instruction, storage)
    name = instruction.parts[0]
    function = NUMBER_OF_TWO[name] if storage[0] == "f" else f"np.{name}imum"
    finish(emitter, instruction, f"{function}({a}, {b})", storage, predicate)


@emits("div")
def divide(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"full", "approx"} | FLOAT_MODIFIERS)
    storage = type_of(instruction)
    a, b = operands(emitter, instruction, storage)
    if storage[0] == "f":
        expression = f"({a} / {b})"
    elif storage[0] == "u":
        expression = f"numerics.unsigned_quotient({a}, {b})"
    else:
        expression = f"numerics.signed_quotient({a}, {b})"
    finish(emitter, instruction, expression, storage, predicate)


@emits("rem")
def remainder(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, ())
    storage = type_of(instruction)
    a, b = operands(emitter, instruction, storage)
    sign = "unsigned" if storage[0] == "u" else "signed"
    emitter.write(
        instruction.operands[0], f"numerics.{sign}_remainder({a}, {b})", storage, predicate
    )


@emits("neg", "abs")
def sign(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"ftz"})
    storage = type_of(instruction)
    if size_of(storage) < 2 or storage == "f16":
        raise refuse(instruction)
    source = emitter.array(instruction.operands[1], storage)
    expression = f"(-{source})" if instruction.parts[0] == "neg" else f"np.abs({source})"
    finish(emitter, instruction, expression, storage, predicate)
