# SPDX-License-Identifier: Apache-2.0
"""Bit operations: logic, shifts, field insertion and extraction, byte permutation, counts."""

from __future__ import annotations

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, expect_parts, refuse, type_of
from ptx_emulator.ptx.model import Imm, Instruction
from ptx_emulator.types import numpy_name, size_of

LOGIC = {"and": "&", "or": "|", "xor": "^"}


@emits("and", "or", "xor")
def logic(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, ())
    storage = type_of(instruction)
    a = emitter.array(instruction.operands[1], storage)
    b = emitter.read(instruction.operands[2], storage)
    operator = LOGIC[instruction.parts[0]]
    emitter.write(instruction.operands[0], f"({a} {operator} {b})", storage, predicate)


@emits("not")
def invert(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    storage = type_of(instruction)
    source = emitter.array(instruction.operands[1], storage)
    emitter.write(instruction.operands[0], f"(~{source})", storage, predicate)


@emits("shl", "shr")
def shift(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """Amounts beyond the width shift everything out; NumPy leaves them undefined."""
    expect_parts(instruction, ())
    storage = type_of(instruction)
    source = emitter.array(instruction.operands[1], storage)
    amount, width = instruction.operands[2], 8 * size_of(storage)
    operator = "<<" if instruction.parts[0] == "shl" else ">>"
    if isinstance(amount, Imm):
        if amount.bits < width:
            expression = f"({source} {operator} {amount.bits})"
        elif operator == ">>" and storage[0] == "i":
            expression = f"({source} >> {width - 1})"
        else:
            expression = f"np.zeros_like({source})"
    else:
        side = "left" if operator == "<<" else "right"
        expression = f"numerics.shift_{side}({source}, {emitter.read(amount, 'u32')})"
    emitter.write(instruction.operands[0], expression, storage, predicate)


@emits("shf")
def funnel_shift(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"l", "r", "wrap", "clamp"})
    low, high, amount = (emitter.array(o, "u32") for o in instruction.operands[1:])
    _, side, mode, _ = instruction.parts
    expression = f"numerics.funnel_shift({low}, {high}, {amount}, {side!r}, {mode!r})"
    emitter.write(instruction.operands[0], expression, "u32", predicate)


@emits("lop3")
def logic3(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, ())
    *sources, table = instruction.operands[1:]
    if not isinstance(table, Imm):
        raise refuse(instruction)
    a, b, c = (emitter.array(source, "u32") for source in sources)
    expression = f"numerics.logic3({a}, {b}, {c}, {table.bits})"
    emitter.write(instruction.operands[0], expression, "u32", predicate)


@emits("prmt")
def permute_bytes(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, ())
    a, b, selector = (emitter.array(source, "u32") for source in instruction.operands[1:])
    expression = f"numerics.permute_bytes({a}, {b}, {selector})"
    emitter.write(instruction.operands[0], expression, "u32", predicate)


@emits("bfe")
def extract_field(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    storage = type_of(instruction)
    source = emitter.array(instruction.operands[1], storage)
    position, length = (emitter.array(o, "u32") for o in instruction.operands[2:])
    expression = f"numerics.extract_field({source}, {position}, {length})"
    emitter.write(instruction.operands[0], expression, storage, predicate)


@emits("bfi")
def insert_field(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    storage = type_of(instruction)
    field, base = (emitter.array(o, storage) for o in instruction.operands[1:3])
    position, length = (emitter.array(o, "u32") for o in instruction.operands[3:])
    expression = f"numerics.insert_field({field}, {base}, {position}, {length})"
    emitter.write(instruction.operands[0], expression, storage, predicate)


@emits("popc", "clz", "brev")
def count_bits(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    storage = type_of(instruction)
    source = emitter.array(instruction.operands[1], storage)
    names = {"popc": "count_ones", "clz": "leading_zeros", "brev": "reverse_bits"}
    function = names[instruction.parts[0]]
    result = storage if instruction.parts[0] == "brev" else "u32"
    expression = f"integers.{function}({source}).astype({numpy_name(result)})"
    emitter.write(instruction.operands[0], expression, result, predicate)


@emits("bfind")
def find_bit(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"shiftamt"})
    source = emitter.array(instruction.operands[1], type_of(instruction))
    expression = f"integers.highest_bit({source}, {'shiftamt' in instruction.parts})"
    emitter.write(instruction.operands[0], expression, "u32", predicate)
