# SPDX-License-Identifier: Apache-2.0
"""tex: fetches from texture objects."""

from __future__ import annotations

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, refuse
from ptx_emulator.emit.spaces import items_of
from ptx_emulator.ptx.model import Instruction, Memory, Reg
from ptx_emulator.types import STORAGE_OF_PTX

AXES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2}
RESULTS = ("f32", "u32", "s32")
COORDINATES = ("f32", "s32")


@emits("tex")
def fetch(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    match instruction.parts:
        case ("tex", geometry, "v4", result, kind) if geometry in AXES:
            pass
        case _:
            raise refuse(instruction)
    destination, memory, *more = instruction.operands
    known = isinstance(memory, Memory) and isinstance(memory.base, Reg) and not more
    items = items_of(destination)
    if not known or result not in RESULTS or kind not in COORDINATES or len(items) != 4:
        raise refuse(instruction)
    assert isinstance(memory, Memory)
    layered = geometry[0] == "a"
    layer = emitter.array(memory.coords[0], "u32") if layered else None
    places = memory.coords[layered : layered + AXES[geometry]]
    given = ", ".join(emitter.array(place, STORAGE_OF_PTX[kind]) for place in places)
    handle = emitter.array(memory.base, "u64")
    names = emitter.names(4, "u32")
    emitter.line(
        f"{', '.join(names)} = m.textures.fetch("
        f"s, {handle}, {geometry!r}, {layer}, ({given},), {predicate}, {emitter.pc})"
    )
    storage = STORAGE_OF_PTX[result]
    for item, name in zip(items, names, strict=True):
        emitter.write(item, emitter.cast(name, storage), storage, predicate)
