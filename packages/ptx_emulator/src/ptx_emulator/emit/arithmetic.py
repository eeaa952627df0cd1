# SPDX-License-Identifier: Apache-2.0
"""Integer and floating-point arithmetic: add, sub, mul, mad, fma, min, max, div, rem, neg, abs."""

from __future__ import annotations

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, expect_parts, refuse, type_of
from ptx_emulator.ptx.model import Imm, Instruction, Operand
from ptx_emulator.types import numpy_name, size_of

FLOAT_MODIFIERS = {"rn", "ftz", "sat"}
DIRECTED = {"rz", "rm", "rp"}
OPERATORS = {"add": "+", "sub": "-"}
HALVES = {"f16x2": ("f16", "u32"), "bf16x2": ("bf16", "u32")}
HALVES |= {"f16": ("f16", "u16"), "bf16": ("bf16", "u16")}
HALF_OPERATIONS = {
    **{"add": "add_16", "sub": "subtract_16", "mul": "multiply_16", "fma": "fma_16"},
    **{"min": "smaller", "max": "larger", "neg": "negative", "abs": "magnitude"},
}
CLAMPS = {"relu": "not_negative", "sat": "saturate"}
WIDER = {"i16": "i32", "u16": "u32", "i32": "i64", "u32": "u64"}


def flushed(instruction: Instruction, name: str) -> str:
    """The operand with subnormals made zero, if the instruction says .ftz."""
    return f"numerics.flush({name})" if "ftz" in instruction.parts else name


def operands(emitter: Emitter, instruction: Instruction, storage: str) -> list[str]:
    """The sources, at least one of them an array."""
    sources = instruction.operands[1:]
    names = [emitter.read(source, storage) for source in sources]
    if all(isinstance(source, Imm) for source in sources):
        names[0] = emitter.array(sources[0], storage)
    if storage[0] == "f":
        names = [flushed(instruction, name) for name in names]
    return names


def finish(
    emitter: Emitter,
    instruction: Instruction,
    expression: str,
    storage: str,
    predicate: str | None,
) -> None:
    if storage[0] == "f":
        expression = flushed(instruction, expression)
    if "sat" in instruction.parts:
        if storage[0] != "f":
            raise refuse(instruction, "modifier .sat is not emulated for integers")
        expression = f"numerics.saturate({expression})"
    emitter.write(instruction.operands[0], expression, storage, predicate)


def _halves(emitter: Emitter, instruction: Instruction, predicate: str | None) -> bool:
    """Emit arithmetic on 16-bit floats, one or two in a register; False for every other type."""
    if instruction.parts[-1] not in HALVES:
        return False
    dtype, storage = HALVES[instruction.parts[-1]]
    allowed = {"rn", "NaN"} if instruction.parts[0] in ("min", "max") else {"rn", "relu", "sat"}
    expect_parts(instruction, allowed)
    operation = HALF_OPERATIONS[instruction.parts[0]]
    if "NaN" in instruction.parts:
        operation += "_or_nan"
    words = ", ".join(emitter.array(source, storage) for source in instruction.operands[1:])
    clamp = next((part for part in instruction.parts if part in CLAMPS), None)
    ends = f", clamp=numerics.{CLAMPS[clamp]}" if clamp else ""
    expression = f"numerics.halves(numerics.{operation}, {dtype!r}, {words}{ends})"
    emitter.write(instruction.operands[0], expression, storage, predicate)
    return True


def directed(emitter: Emitter, instruction: Instruction, predicate: str | None) -> bool:
    """Emit a sum or a product that is not rounded to the nearest; False for every other one."""
    mode = next((part for part in instruction.parts if part in DIRECTED), None)
    if mode is None:
        return False
    expect_parts(instruction, {mode, "ftz", "sat"})
    storage = type_of(instruction)
    if storage not in ("f32", "f64"):
        raise refuse(instruction)
    sources = (emitter.array(source, storage) for source in instruction.operands[1:])
    values = ", ".join(
        flushed(instruction, source) if storage == "f32" else source for source in sources
    )
    expression = f"rounding.directed({instruction.parts[0]!r}, {mode!r}, {values})"
    finish(emitter, instruction, expression, storage, predicate)
    return True


@emits("add", "sub")
def add_or_sub(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if _halves(emitter, instruction, predicate) or directed(emitter, instruction, predicate):
        return
    expect_parts(instruction, FLOAT_MODIFIERS)
    storage = type_of(instruction)
    a, b = operands(emitter, instruction, storage)
    operator = OPERATORS[instruction.parts[0]]
    finish(emitter, instruction, f"({a} {operator} {b})", storage, predicate)


def widened(emitter: Emitter, operand: Operand, storage: str, wide: str) -> str:
    name = emitter.read(operand, storage)
    return name if isinstance(operand, Imm) else f"{name}.astype({numpy_name(wide)})"


@emits("mul", "mad")
def multiply(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if _halves(emitter, instruction, predicate) or directed(emitter, instruction, predicate):
        return
    expect_parts(instruction, {"lo", "hi", "wide"} | FLOAT_MODIFIERS)
    storage = type_of(instruction)
    if storage[0] == "f":
        if instruction.parts[0] == "mad":
            fused_multiply_add(emitter, instruction, predicate)
            return
        a, b = operands(emitter, instruction, storage)
        finish(emitter, instruction, f"({a} * {b})", storage, predicate)
        return
    first, second, *third = instruction.operands[1:]
    result = WIDER[storage] if "wide" in instruction.parts else storage
    if "wide" in instruction.parts:
        product = _wide_product(emitter, first, second, storage)
    elif "hi" in instruction.parts:
        product = high_product(emitter, instruction, storage)
    else:
        product = f"({emitter.array(first, storage)} * {emitter.read(second, storage)})"
    if third:
        product = f"({product} + {emitter.read(third[0], result)})"
    emitter.write(instruction.operands[0], product, result, predicate)


def high_product(emitter: Emitter, instruction: Instruction, storage: str) -> str:
    first, second = instruction.operands[1:3]
    if storage in ("i64", "u64"):
        a, b = emitter.array(first, storage), emitter.array(second, storage)
        return f"integers.multiply_high({a}, {b})"
    if storage not in ("i32", "u32"):
        raise refuse(instruction)
    product = f"({_wide_product(emitter, first, second, storage)} >> 32)"
    return f"{product}.astype({numpy_name(storage)})"


def _wide_product(emitter: Emitter, first: Operand, second: Operand, storage: str) -> str:
    wide = WIDER[storage]
    a = f"{emitter.array(first, storage)}.astype({numpy_name(wide)})"
    return f"({a} * {widened(emitter, second, storage, wide)})"


@emits("fma")
def fused_multiply_add(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if _halves(emitter, instruction, predicate) or directed(emitter, instruction, predicate):
        return
    expect_parts(instruction, FLOAT_MODIFIERS)
    storage = type_of(instruction)
    a, b, c = (
        flushed(instruction, emitter.array(source, storage)) for source in instruction.operands[1:]
    )
    function = "numerics.fma" if storage == "f32" else "numerics.fma_64"
    finish(emitter, instruction, f"{function}({a}, {b}, {c})", storage, predicate)


NUMBER_OF_TWO = {"min": "numerics.smaller", "max": "numerics.larger"}


@emits("min", "max")
def extremum(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if _halves(emitter, instruction, predicate):
        return
    expect_parts(instruction, {"ftz", "NaN"})
    storage = type_of(instruction)
    a, b = operands(emitter, instruction, storage)
    name = instruction.parts[0]
    function = NUMBER_OF_TWO[name] if storage[0] == "f" else f"np.{name}imum"
    function += "_or_nan" if "NaN" in instruction.parts else ""
    finish(emitter, instruction, f"{function}({a}, {b})", storage, predicate)


@emits("div")
def divide(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if directed(emitter, instruction, predicate):
        return
    expect_parts(instruction, {"full", "approx"} | FLOAT_MODIFIERS)
    storage = type_of(instruction)
    a, b = operands(emitter, instruction, storage)
    if "approx" in instruction.parts:
        expression = f"numerics.approximate_quotient({a}, {b})"
    elif storage[0] == "f":
        expression = f"({a} / {b})"
    elif storage[0] == "u":
        expression = f"numerics.unsigned_quotient({a}, {b})"
    else:
        expression = f"numerics.signed_quotient({a}, {b})"
    finish(emitter, instruction, expression, storage, predicate)


@emits("rem")
def remainder(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, ())
    storage = type_of(instruction)
    a, b = operands(emitter, instruction, storage)
    sign = "unsigned" if storage[0] == "u" else "signed"
    emitter.write(
        instruction.operands[0], f"numerics.{sign}_remainder({a}, {b})", storage, predicate
    )


@emits("neg", "abs")
def sign(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if _halves(emitter, instruction, predicate):
        return
    expect_parts(instruction, {"ftz"})
    storage = type_of(instruction)
    if size_of(storage) < 2:
        raise refuse(instruction)
    source = emitter.array(instruction.operands[1], storage)
    expression = f"(-{source})" if instruction.parts[0] == "neg" else f"np.abs({source})"
    finish(emitter, instruction, expression, storage, predicate)


@emits("copysign")
def copy_sign(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """The second operand with the sign of the first."""
    expect_parts(instruction, ())
    storage = type_of(instruction)
    signed, value = (emitter.array(source, storage) for source in instruction.operands[1:])
    emitter.write(instruction.operands[0], f"np.copysign({value}, {signed})", storage, predicate)


@emits("sad")
def absolute_difference(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, ())
    storage = type_of(instruction)
    values = ", ".join(emitter.array(source, storage) for source in instruction.operands[1:])
    expression = f"integers.absolute_difference({values})"
    emitter.write(instruction.operands[0], expression, storage, predicate)


@emits("dp4a")
def dot_of_bytes(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, ())
    _, a_type, b_type = instruction.parts
    storage = "u32" if a_type == b_type == "u32" else "i32"
    values = ", ".join(emitter.array(source, storage) for source in instruction.operands[1:])
    expression = f"integers.dot_of_bytes({values}, {a_type!r}, {b_type!r})"
    emitter.write(instruction.operands[0], expression, storage, predicate)
