# SPDX-License-Identifier: Apache-2.0
"""ldmatrix, stmatrix and mma.sync."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, emits_run, expect_parts, refuse
from ptx_emulator.emit.spaces import items_of
from ptx_emulator.emit.wide import bind_rows, run_addresses
from ptx_emulator.ptx.model import Instruction, Operand, Reg

GATHERED = {("f16", "f16"), ("bf16", "bf16")}
# The element types of products, and the types of their sums.
ELEMENTS = {
    **{"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",)},
    **dict.fromkeys(("s4", "u4", "s8", "u8"), ("s32",)),
    "f64": ("f64",),
    **{"e4m3": ("f32", "f16"), "e5m2": ("f32", "f16")},
}
SHAPE = re.compile(r"m(8|16)n8k(\d+)")
SMALL = {"f64", "s8", "u8", "s4", "u4"}  # elements of products of 8 rows
MATRICES = {"x1": 1, "x2": 2, "x4": 4}
COMMON = {"sync", "aligned", "m8n8", "trans", "shared", "shared::cta", *MATRICES}


def _shape(instruction: Instruction, predicate: str | None) -> tuple[int, bool]:
    expect_parts(instruction, COMMON)
    if predicate is not None:
        raise refuse(instruction, f"a predicated {instruction.parts[0]} is not emulated")
    if "m8n8" not in instruction.parts or instruction.parts[-1] != "b16":
        raise refuse(instruction)
    count = next(MATRICES[part] for part in instruction.parts if part in MATRICES)
    return count, "trans" in instruction.parts


@emits("ldmatrix")
def load_matrix(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    _shape(instruction, predicate)
    load_matrices(emitter, [instruction], [emitter.pc])


@emits_run("ldmatrix")
def load_matrices(
    emitter: Emitter, instructions: Sequence[Instruction], pcs: Sequence[int]
) -> None:
    count, trans = _shape(instructions[0], None)
    addresses = run_addresses(emitter, [i.operands[1] for i in instructions], "u32")
    call = f"m.matrix.ldmatrix(s, {addresses}, {count}, {trans}, {tuple(pcs)})"
    bind_rows(
        emitter, [item for i in instructions for item in items_of(i.operands[0])], call, "u32"
    )


@emits("stmatrix")
def store_matrix(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    count, trans = _shape(instruction, predicate)
    memory, source = instruction.operands
    address = emitter.address(memory, "u32")
    values = ", ".join(emitter.array(item, "u32") for item in items_of(source))
    emitter.line(f"m.matrix.stmatrix(s, {address}, {count}, {trans}, ({values},), {emitter.pc})")


@emits("movmatrix")
def transpose(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    destination, source = instruction.operands
    if instruction.parts[1:] != ("sync", "aligned", "m8n8", "trans", "b16") or predicate:
        raise refuse(instruction)
    words = emitter.array(source, "u32")
    emitter.write(destination, f"m.matrix.transposed(s, {words})", "u32")


@emits("mma")
def multiply(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    _, *modes, shape, _, _, d_type, a_type, b_type, c_type = _without_saturation(instruction)
    known = modes == ["sync", "aligned"] and instruction.parts[4:6] == ("row", "col")
    if not known or d_type != c_type or predicate is not None:
        raise refuse(instruction)
    if (shape, d_type) != ("m16n8k16", "f32") or (a_type, b_type) not in GATHERED:
        found = SHAPE.fullmatch(shape)
        if found is None or (found[1] == "8" and a_type not in SMALL):
            raise refuse(instruction)
        _multiply_at_once(emitter, instruction, (int(found[1]), int(found[2])))
        return
    d, a, b, c = (items_of(operand) for operand in instruction.operands)
    d_registers, c_registers = _names(d), _names(c)
    a_values = tuple(emitter.read(item, "u32") for item in a)
    b_values = tuple(emitter.read(item, "u32") for item in b)
    before: tuple[str, ...] = ()
    if not emitter.products.continues(a_type, d_registers, c_registers):
        before = tuple(emitter.array(item, "f32") for item in c)
    emitter.products.mma(a_type, d_registers, c_registers, a_values, b_values, before)


def _without_saturation(instruction: Instruction) -> tuple[str, ...]:
    """Integer products that stay within 32 bits are the same with and without it."""
    return tuple(part for part in instruction.parts if part != "satfinite")


def _multiply_at_once(emitter: Emitter, instruction: Instruction, shape: tuple[int, int]) -> None:
    """Products that are not gathered: other shapes, element types and accumulators."""
    *_, d_type, a_type, b_type, _ = instruction.parts
    if a_type not in ELEMENTS or b_type not in ELEMENTS or d_type not in ELEMENTS[a_type]:
        raise refuse(instruction)
    d, a, b, c = (items_of(operand) for operand in instruction.operands)
    storage = {"f32": "f32", "f64": "f64", "s32": "i32", "f16": "u32"}[d_type]
    word = "f64" if a_type == "f64" else "u32"
    lists = [", ".join(emitter.array(item, kind) for item in items) for items, kind in
             ((a, word), (b, word), (c, storage))]  # fmt: skip
    names = emitter.names(len(d), storage)
    emitter.line(
        f"{', '.join(names)}, = m.matrix.mma_at_once(s, {shape}, {a_type!r}, {b_type!r},"
        f" ({lists[0]},), ({lists[1]},), ({lists[2]},))"
    )
    emitter.borrow(names)
    for item, name in zip(d, names, strict=True):
        emitter.write(item, name, storage)


def _names(items: tuple[Operand, ...]) -> tuple[str, ...]:
    return tuple(item.name if isinstance(item, Reg) else "" for item in items)
