# SPDX-License-Identifier: Apache-2.0
"""wmma.load, wmma.mma and wmma.store."""

from __future__ import annotations

import re

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, refuse
from ptx_emulator.emit.spaces import COMPONENTS, items_of, space_of
from ptx_emulator.ptx.model import Instruction, Operand

SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
SIZES = {"f16": 2, "bf16": 2, "f32": 4, "tf32": 4, "f64": 8, "s8": 1, "u8": 1, "s32": 4}
ACCUMULATORS = {"f16": "u32", "f32": "f32", "f64": "f64", "s32": "i32"}
MODIFIERS = ("rn", "satfinite")


@emits("wmma")
def wmma(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if predicate is not None or _types(instruction)[-1] not in SIZES:
        raise refuse(instruction)
    if instruction.parts[1] == "mma":
        _multiply(emitter, instruction)
    elif instruction.parts[1] in ("load", "store"):
        _move(emitter, instruction)
    else:
        raise refuse(instruction)


def _shape(instruction: Instruction) -> tuple[int, int, int]:
    found = (SHAPE.fullmatch(part) for part in instruction.parts)
    m, n, k = next(tuple(map(int, match.groups())) for match in found if match)
    return m, n, k


def _types(instruction: Instruction) -> list[str]:
    """What stands behind the shape."""
    parts = [part for part in instruction.parts if part not in MODIFIERS]
    place = next((n for n, part in enumerate(parts) if SHAPE.fullmatch(part)), 0)
    return parts[place + 1 :]


def _move(emitter: Emitter, instruction: Instruction) -> None:
    _, kind, which, *rest = instruction.parts
    m, n, k = _shape(instruction)
    shape = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}[which]
    size = SIZES[rest[-1]]
    word = "u64" if size == 8 else "u32"
    component, width = COMPONENTS[space_of(instruction)]
    operands = list(instruction.operands)
    registers = items_of(operands.pop(0 if kind == "load" else 1))
    address, stride = emitter.address(operands[0], width), emitter.array(operands[1], "u32")
    where = f"s, {component}, {address}, {stride}, {shape}, {'row' in rest}, {size}"
    if kind == "store":
        values = ", ".join(emitter.array(item, word) for item in registers)
        emitter.line(f"m.wmma.store({where}, ({values},), {emitter.pc})")
        return
    names = emitter.names(len(registers), word)
    emitter.line(f"{', '.join(names)}, = m.wmma.load({where}, {len(names)}, {emitter.pc})")
    _write(emitter, registers, names, word)


def _multiply(emitter: Emitter, instruction: Instruction) -> None:
    d, a, b, c = (items_of(operand) for operand in instruction.operands)
    types = _types(instruction)
    dtype = types[1] if len(types) == 4 else "f16"
    storage, word = ACCUMULATORS[types[-1]], "f64" if dtype == "f64" else "u32"
    lists = [
        ", ".join(emitter.array(item, kind) for item in items)
        for items, kind in ((a, word), (b, word), (c, storage))
    ]
    if len(c) != len(d):
        raise refuse(instruction, "accumulators of two types are not emulated")
    names = emitter.names(len(d), storage)
    emitter.line(
        f"{', '.join(names)}, = m.wmma.multiply(s, {_shape(instruction)}, {dtype!r},"
        f" ({lists[0]},), ({lists[1]},), ({lists[2]},))"
    )
    _write(emitter, d, names, storage)


def _write(
    emitter: Emitter, registers: tuple[Operand, ...], names: list[str], storage: str
) -> None:
    emitter.borrow(names)
    for register, name in zip(registers, names, strict=True):
        emitter.write(register, name, storage)
