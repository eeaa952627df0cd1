# SPDX-License-Identifier: Apache-2.0
"""ldmatrix, stmatrix and mma.sync."""

from __future__ import annotations

from flash_attention.emulator.emit.block import BlockEmitter
from flash_attention.emulator.emit.memory import items_of
from flash_attention.emulator.emit.registry import emits, expect_parts, refuse
from flash_attention.emulator.ptx.model import Instruction, Operand, Reg

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
def load_matrix(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> None:
    count, trans = _shape(instruction, predicate)
    destination, memory = instruction.operands
    address = emitter.address(memory, "u32")
    names = emitter.names(count, "u32")
    emitter.line(
        f"{', '.join(names)}, = m.matrix.ldmatrix(s, {address}, {count}, {trans}, {emitter.pc})"
    )
    emitter.borrow(names)
    for item, name in zip(items_of(destination), names, strict=True):
        emitter.write(item, name, "u32")


@emits("stmatrix")
def store_matrix(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> None:
    count, trans = _shape(instruction, predicate)
    memory, source = instruction.operands
    address = emitter.address(memory, "u32")
    values = ", ".join(emitter.array(item, "u32") for item in items_of(source))
    emitter.line(f"m.matrix.stmatrix(s, {address}, {count}, {trans}, ({values},), {emitter.pc})")


@emits("mma")
def multiply(emitter: BlockEmitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"sync", "aligned", "m16n8k16", "row", "col"})
    _, _, _, shape, *majors, d_type, a_type, b_type, c_type = instruction.parts
    fits = shape == "m16n8k16" and majors == ["row", "col"] and d_type == c_type == "f32"
    if not fits or a_type != b_type or a_type not in ("f16", "bf16") or predicate is not None:
        raise refuse(instruction)
    d, a, b, c = (items_of(operand) for operand in instruction.operands)
    d_registers, c_registers = _names(d), _names(c)
    a_values = tuple(emitter.read(item, "u32") for item in a)
    b_values = tuple(emitter.read(item, "u32") for item in b)
    before: tuple[str, ...] = ()
    if not emitter.products.continues(a_type, d_registers, c_registers):
        before = tuple(emitter.array(item, "f32") for item in c)
    emitter.products.mma(a_type, d_registers, c_registers, a_values, b_values, before)


def _names(items: tuple[Operand, ...]) -> tuple[str, ...]:
    return tuple(item.name if isinstance(item, Reg) else "" for item in items)
