# SPDX-License-Identifier: Apache-2.0
"""Integer instructions that few kernels have: carries, masks, products of parts of words."""

from __future__ import annotations

from ptx_emulator.emit.arithmetic import high_product
from ptx_emulator.emit.compare import write_pair
from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, expect_parts, refuse, type_of
from ptx_emulator.ptx.model import Imm, Instruction
from ptx_emulator.types import STORAGE_OF_PTX, numpy_name, size_of


@emits("carry")
def with_carry(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """add, sub and mad whose carry flag is an operand."""
    _, name, *rest = instruction.parts
    destination, *sources, comes_in = instruction.operands
    storage = type_of(instruction)
    unsigned = f"u{8 * size_of(storage)}"
    if name == "mad":
        first, second, third = sources
        if "hi" in rest:
            product = high_product(emitter, instruction, storage)
        else:
            product = f"({emitter.array(first, storage)} * {emitter.read(second, storage)})"
        a = emitter.cast(emitter.temporary(product, storage), unsigned)
        b = emitter.array(third, unsigned)
    else:
        a, b = (emitter.array(source, unsigned) for source in sources)
    flag = "0"
    if not isinstance(comes_in, Imm):
        flag = f"{emitter.read(comes_in, 'b1')}.astype({numpy_name(unsigned)})"
    function = "difference_and_borrow" if name == "sub" else "sum_and_carry"
    total, goes_out = emitter.names(2, unsigned)
    emitter.line(
        f"{total}, {goes_out} = integers.{function}({a}, {b}, {numpy_name(unsigned)}(0) + {flag})"
    )
    write_pair(emitter, destination, total, unsigned, f"{goes_out}.astype(bool)", predicate)


@emits("bmsk", "szext")
def field(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"clamp", "wrap"})
    name, mode = instruction.parts[:2]
    storage = type_of(instruction)
    a, b = (
        emitter.array(source, kind)
        for source, kind in zip(instruction.operands[1:], (storage, "u32"), strict=True)
    )
    function = "bit_mask" if name == "bmsk" else "extended"
    expression = f"integers.{function}({a}, {b}, {mode!r})"
    emitter.write(instruction.operands[0], expression, storage, predicate)


@emits("fns")
def find_nth(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, ())
    mask, base, offset = (
        emitter.array(source, kind)
        for source, kind in zip(instruction.operands[1:], ("u32", "u32", "i32"), strict=True)
    )
    expression = f"integers.nth_set_bit({mask}, {base}, {offset})"
    emitter.write(instruction.operands[0], expression, "u32", predicate)


@emits("cnot")
def is_zero(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    storage = type_of(instruction)
    source = emitter.array(instruction.operands[1], storage)
    expression = f"({source} == 0).astype({numpy_name(storage)})"
    emitter.write(instruction.operands[0], expression, storage, predicate)


@emits("slct")
def select_by_sign(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, ())
    _, kind, by = instruction.parts
    storage, sign = STORAGE_OF_PTX[kind], STORAGE_OF_PTX[by]
    a, b = (emitter.array(source, storage) for source in instruction.operands[1:3])
    chooser = emitter.array(instruction.operands[3], sign)
    emitter.write(
        instruction.operands[0], f"np.where({chooser} >= 0, {a}, {b})", storage, predicate
    )


@emits("mul24", "mad24")
def multiply_24(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"lo", "hi"})
    storage = type_of(instruction)
    first, second, *third = instruction.operands[1:]
    shift = f"<< {numpy_name(storage)}(8)) >> {numpy_name(storage)}(8))"
    wide = numpy_name(f"{storage[0]}64")
    a, b = (f"(({emitter.array(o, storage)} {shift}.astype({wide})" for o in (first, second))
    product = f"({a} * {b} >> {16 if 'hi' in instruction.parts else 0})"
    expression = f"{product}.astype({numpy_name(storage)})"
    if third:
        expression = f"({expression} + {emitter.read(third[0], storage)})"
    emitter.write(instruction.operands[0], expression, storage, predicate)


@emits("dp2a")
def dot_of_halves(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"lo", "hi"})
    _, side, a_type, b_type = instruction.parts
    storage = "u32" if a_type == b_type == "u32" else "i32"
    values = ", ".join(emitter.array(source, storage) for source in instruction.operands[1:])
    expression = f"integers.dot_of_halves({values}, {a_type!r}, {b_type!r}, {side!r})"
    emitter.write(instruction.operands[0], expression, storage, predicate)


@emits("vabsdiff4")
def differences_of_bytes(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if instruction.parts[1:4] != ("u32", "u32", "u32"):
        raise refuse(instruction)
    expect_parts(instruction, {"add"})
    values = ", ".join(emitter.array(source, "u32") for source in instruction.operands[1:])
    expression = f"integers.differences_of_bytes({values}, {'add' in instruction.parts})"
    emitter.write(instruction.operands[0], expression, "u32", predicate)
