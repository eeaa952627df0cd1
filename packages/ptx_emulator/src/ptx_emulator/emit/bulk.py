# SPDX-License-Identifier: Apache-2.0
"""Asynchronous copies: cp.async by threads, cp.async.bulk by the copy engine."""

from __future__ import annotations

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, refuse
from ptx_emulator.ptx.model import Imm, Instruction, Memory, Operand

ASYNC = {"async", "ca", "cg", "shared", "shared::cta", "global", "L2::64B", "L2::128B", "L2::256B"}
BULK = {
    *("async", "bulk", "tensor", "1d", "2d", "3d", "4d", "5d", "tile", "global", "bulk_group"),
    *("shared::cta", "shared::cluster", "mbarrier::complete_tx::bytes", "L2::cache_hint"),
    "multicast::cluster",
}
MULTICAST = ("multicast::cluster",)
LOAD = {
    ("cp", "async", "bulk", space, "global", "mbarrier::complete_tx::bytes", *more)
    for space, more in (
        ("shared::cta", ()),
        ("shared::cluster", ()),
        ("shared::cluster", MULTICAST),
    )
}
SEND = ("cp", "async", "bulk", "shared::cluster", "shared::cta", "mbarrier::complete_tx::bytes")
STORE = ("cp", "async", "bulk", "global", "shared::cta", "bulk_group")
ADDITION = ("cp", "reduce", "async", "bulk", "global", "shared::cta", "bulk_group", "add", "f32")
ADDITIONS = {*BULK, "reduce", "add"}  # to a tensor, whose type is that of its map

PREFETCH = {"1d", "2d", "3d", "4d", "5d", "tile", "L2", "global"}


@emits("cp")
def copy(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    parts = instruction.parts
    if parts == ADDITION:
        _linear(emitter, instruction, predicate, "add")
    elif parts[1:5] == ("reduce", "async", "bulk", "tensor") and set(parts[1:]) <= ADDITIONS:
        _tensor(emitter, instruction, predicate)
    elif parts[:3] == ("cp", "async", "bulk"):
        _bulk(emitter, instruction, predicate)
    elif parts[:2] != ("cp", "async"):
        raise refuse(instruction)
    elif parts[2:4] == ("mbarrier", "arrive"):
        _arrive_behind_copies(emitter, instruction, predicate)
    elif parts[2] == "commit_group":
        emitter.line("m.copies.commit(s)")
    elif parts[2] == "wait_group":
        emitter.line(f"m.copies.wait(s, {_number(instruction)})")
    elif parts[2] == "wait_all":
        emitter.line("m.copies.commit(s)")
        emitter.line("m.copies.wait(s, 0)")
    else:
        _by_threads(emitter, instruction, predicate)


def _arrive_behind_copies(
    emitter: Emitter, instruction: Instruction, predicate: str | None
) -> None:
    """cp.async.mbarrier.arrive: the copies so far land at once, and then the thread arrives.

    Without .noinc the mbarrier expects this arrival in addition to its count, so it changes none.
    """
    if predicate is not None:
        raise refuse(instruction)
    address = emitter.address(instruction.operands[0], "u32")
    emitter.line("m.copies.commit(s)")
    emitter.line("m.copies.wait(s, 0)")
    count = "None" if "noinc" in instruction.parts else emitter.constant("u32", 0)
    emitter.line(f"m.mbarriers.arrive(s, {address}, None, {count}, None, {emitter.pc})")


def _by_threads(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if not set(instruction.parts[1:]) <= ASYNC:
        raise refuse(instruction)
    target, source, size, *rest = instruction.operands
    if not isinstance(size, Imm) or len(rest) > 1:
        raise refuse(instruction)
    to, where = emitter.address(target, "u32"), emitter.address(source, "u64")
    given = emitter.read(rest[0], "u32") if rest else "None"
    emitter.line(
        f"m.copies.issue(s, {to}, {where}, {size.bits}, {given}, {predicate}, {emitter.pc})"
    )


def _bulk(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    parts = instruction.parts
    if parts[3] == "commit_group":
        emitter.line("m.bulk_groups.commit(s)")
    elif parts[3] == "wait_group":
        emitter.line(f"m.bulk_groups.wait(s, {_number(instruction)}, {'read' in parts})")
    elif parts[3:5] == ("prefetch", "tensor") and set(parts[5:]) <= PREFETCH:
        tensor = _place(emitter, instruction.operands[0])
        emitter.line(f"m.tma.prefetch(s, {tensor}, {predicate}, {emitter.pc})")
    elif parts[3:] == ("prefetch", "L2", "global"):
        return
    elif parts[3] == "tensor" and set(parts[1:]) <= BULK:
        _tensor(emitter, instruction, predicate)
    elif parts in LOAD:
        _linear(emitter, instruction, predicate, "load")
    elif parts == SEND:
        _linear(emitter, instruction, predicate, "send")
    elif parts == STORE:
        _linear(emitter, instruction, predicate, "store")
    else:
        raise refuse(instruction)


def _linear(emitter: Emitter, instruction: Instruction, predicate: str | None, method: str) -> None:
    """Bytes one after the other; a load names its mbarrier, and the CTAs of a multicast."""
    target, source, size, *rest = instruction.operands
    widths = {"load": ("u32", "u64"), "send": ("u32", "u32")}.get(method, ("u64", "u32"))
    values = [emitter.address(target, widths[0]), emitter.address(source, widths[1])]
    values.append(emitter.array(size, "u32"))
    values += [emitter.address(barrier, "u32") for barrier in rest[:1]]
    if method == "load":
        values.append(_ranks(emitter, instruction, rest))
    emitter.line(f"m.bulk_copies.{method}(s, {', '.join(values)}, {predicate}, {emitter.pc})")


def _tensor(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    first, second, *rest = instruction.operands
    method = "add" if "add" in instruction.parts else "store"
    if instruction.parts[5].startswith("shared"):
        to, barrier = emitter.address(first, "u32"), emitter.address(rest[0], "u32")
        tensor, ranks = _place(emitter, second), _ranks(emitter, instruction, rest)
        where = f"{to}, {tensor}, {barrier}, {ranks}"
        emitter.line(f"m.tma.load(s, {where}, {predicate}, {emitter.pc})")
    else:
        tensor = _place(emitter, first)
        source = emitter.address(second, "u32")
        emitter.line(f"m.tma.{method}(s, {tensor}, {source}, {predicate}, {emitter.pc})")


def _ranks(emitter: Emitter, instruction: Instruction, rest: list[Operand]) -> str:
    """The mask of the CTAs that a multicast goes to, behind the mbarrier."""
    return emitter.array(rest[1], "u16") if "multicast::cluster" in instruction.parts else "None"


def _place(emitter: Emitter, operand: Operand) -> str:
    """The tuple of a tensor map and coordinates."""
    if not isinstance(operand, Memory):
        raise ValueError("a tensor needs coordinates")
    values = [emitter.array(coord, "i32") for coord in operand.coords]
    return f"({', '.join([emitter.array(operand.base, 'u64'), *values])})"


def _number(instruction: Instruction) -> int:
    (pending,) = instruction.operands
    if not isinstance(pending, Imm):
        raise refuse(instruction)
    return pending.bits
