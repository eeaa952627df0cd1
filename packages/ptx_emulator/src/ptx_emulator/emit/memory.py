# SPDX-License-Identifier: Apache-2.0
"""Loads, stores and atomics on all memories; fences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import (
    HALF_PRECISION,
    emits,
    emits_run,
    expect_parts,
    refuse,
    type_of,
)
from ptx_emulator.emit.spaces import COMPONENTS, items_of, space_of
from ptx_emulator.emit.wide import bind_rows, run_addresses
from ptx_emulator.errors import EmulatorError
from ptx_emulator.program.ordering import scope_of_fence
from ptx_emulator.ptx.model import Instruction, Memory, Operand, Reg, Vector
from ptx_emulator.types import STORAGE_OF_PTX, numpy_name, size_of


def _component(instruction: Instruction) -> tuple[str, str]:
    """The machine's component for the instruction's space, and the width of its addresses."""
    return COMPONENTS[space_of(instruction)]


@emits("ld", "ldu")
def load(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    storage = type_of(instruction)
    destination, memory = instruction.operands[:2]
    if space_of(instruction) == "param" and _load_parameter(
        emitter, instruction, destination, memory
    ):
        return
    component, width = _component(instruction)
    items = items_of(destination)
    address = emitter.address(memory, width)
    size = size_of(storage)
    names = emitter.names(len(items), f"u{8 * size}")
    emitter.line(
        f"{', '.join(names)}, = {component}.load("
        f"s, {address}, {size}, {len(items)}, {predicate}, {emitter.pc})"
    )
    for item, name in zip(items, names, strict=True):
        _write_loaded(emitter, item, name, storage, predicate)


@emits_run("ld")
def load_together(
    emitter: Emitter, instructions: Sequence[Instruction], pcs: Sequence[int]
) -> None:
    """Loads from shared memory."""
    storage = type_of(instructions[0])
    size = size_of(storage)
    items = [item for i in instructions for item in items_of(i.operands[0])]
    widths = {size_of(emitter.register_storage(i.name)) for i in items if isinstance(i, Reg)}
    if len(widths) != 1:
        raise EmulatorError("registers of several widths in one run")
    addresses = run_addresses(emitter, [i.operands[1] for i in instructions], "u32")
    count = len(items) // len(instructions)
    call = f"m.shared.load_run(s, {addresses}, {size}, {count}, {tuple(pcs)})"
    values = emitter.cast(emitter.temporary(call, f"u{8 * size}"), storage)
    if widths != {size}:
        storage = f"{storage[0] if storage[0] in 'iu' else 'u'}{8 * widths.pop()}"
        values = emitter.temporary(f"{values}.astype({numpy_name(storage)})", storage)
    bind_rows(emitter, items, values, storage)


def _write_loaded(
    emitter: Emitter, item: Operand, name: str, storage: str, predicate: str | None
) -> None:
    """A load narrower than its register is extended by its own sign."""
    value = emitter.cast(name, storage)
    if isinstance(item, Reg):
        register = emitter.register_storage(item.name)
        if size_of(register) > size_of(storage):
            wide = f"{storage[0] if storage[0] in 'iu' else 'u'}{8 * size_of(register)}"
            emitter.write(item, f"{value}.astype({numpy_name(wide)})", wide, predicate)
            return
    emitter.write(item, value, storage, predicate)


def _load_parameter(
    emitter: Emitter, instruction: Instruction, destination: Operand, memory: Operand
) -> bool:
    """Bind what is known before the launch; False where the address is computed."""
    base = emitter.layout.param_offset(memory.base) if isinstance(memory, Memory) else None
    if base is None or not isinstance(memory, Memory):
        return False
    type_name = instruction.parts[-1]
    offset = base + memory.offset
    for index, item in enumerate(items_of(destination)):
        storage = type_of(instruction)
        name = emitter.parameter(type_name, offset + index * size_of(storage))
        _write_loaded(emitter, item, name, storage, None)
    return True


@emits("st")
def store(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    storage = type_of(instruction)
    memory, source = instruction.operands[:2]
    if "async" in instruction.parts:
        raise refuse(instruction)
    if space_of(instruction) in ("param", "const"):
        raise refuse(instruction, f".{space_of(instruction)} memory is not written")
    component, width = _component(instruction)
    address = emitter.address(memory, width)
    size = size_of(storage)
    values = ", ".join(emitter.array(item, f"u{8 * size}") for item in items_of(source))
    emitter.line(f"{component}.store(s, {address}, {size}, ({values},), {predicate}, {emitter.pc})")


VECTORS = ("v2", "v4", "v8")
OPERATIONS = ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec")
ATOMIC = {
    *(
        "global",
        "shared",
        "shared::cta",
        "shared::cluster",
        "relaxed",
        "acquire",
        "release",
        "acq_rel",
    ),
    *("cta", "cluster", "gpu", "sys", "noftz"),
    *VECTORS,
    *OPERATIONS,
}


def _operation(instruction: Instruction) -> tuple[str, str, str]:
    """What an atomic does, the type it does it with, and how that is stored."""
    if space_of(instruction) not in ("global", "shared", "generic"):
        raise refuse(instruction)
    expect_parts(instruction, ATOMIC)
    operation = next(part for part in instruction.parts if part in OPERATIONS)
    kind = instruction.parts[-1]
    if kind in HALF_PRECISION:
        if operation not in ("add", "min", "max"):
            raise refuse(instruction)
        return operation, kind, STORAGE_OF_PTX[kind].replace("f", "u")
    storage = type_of(instruction)
    return operation, storage, storage


@emits("atom")
def atomic(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    operation, kind, storage = _operation(instruction)
    destination, memory, *values = instruction.operands
    if isinstance(destination, Vector):
        _atomics(emitter, instruction, predicate)
        return
    component, width = _component(instruction)
    address = emitter.address(memory, width)
    if operation == "cas":
        compare, value = (emitter.array(v, storage) for v in values)
    else:
        compare, value = "None", emitter.array(values[0], storage)
    looked_at = isinstance(destination, Reg) and destination.name in emitter.layout.used
    call = (
        f"{component}.atomic(s, {operation!r}, {kind!r}, {address}, {value}, {compare},"
        f" {predicate}, {emitter.pc}, {looked_at})"
    )
    emitter.write(destination, emitter.temporary(call, storage), storage, predicate)


def _atomics(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """A vector is as many atomics, at places that follow each other."""
    destination, memory, source = instruction.operands
    if not isinstance(memory, Memory):
        raise refuse(instruction)
    parts = tuple(part for part in instruction.parts if part not in VECTORS)
    step = size_of(_operation(instruction)[2])
    for index, items in enumerate(zip(items_of(destination), items_of(source), strict=True)):
        place = memory._replace(offset=memory.offset + index * step)
        one = replace(instruction, parts=parts, operands=(items[0], place, items[1]))
        atomic(emitter, one, predicate)


@emits("red")
def reduce(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """Without a result; a vector of floats is as many additions."""
    operation, kind, storage = _operation(instruction)
    memory, source = instruction.operands
    component, width = _component(instruction)
    address = emitter.address(memory, width)
    values = ", ".join(emitter.array(item, storage) for item in items_of(source))
    emitter.line(
        f"{component}.reduce(s, {operation!r}, {kind!r}, {address}, ({values},),"
        f" {predicate}, {emitter.pc})"
    )


@emits("fence", "membar")
def fence(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """Between threads of a scope, between proxies, or behind mbarrier.init."""
    parts, scope = instruction.parts, scope_of_fence(instruction)
    if scope is not None:
        emitter.line(f"m.clocks.fence(s, {scope!r}, {predicate})")
    elif "mbarrier_init" in parts:
        emitter.line(f"m.mbarriers.fence_inits(s, {predicate})")
    else:
        spaces = {part.split("::")[0] for part in parts} & {"shared", "global"}
        emitter.line(f"m.clocks.fence_proxy(s, {sorted(spaces)}, {predicate})")
