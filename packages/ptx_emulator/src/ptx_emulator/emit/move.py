# SPDX-License-Identifier: Apache-2.0
"""Moves between registers, address-space conversions, packing and unpacking."""

from __future__ import annotations

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, refuse, type_of
from ptx_emulator.ptx.model import Instruction, Sink, Vector
from ptx_emulator.types import numpy_name, size_of


@emits("mov")
def move(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    storage = type_of(instruction)
    destination, source = instruction.operands
    if isinstance(destination, Vector):
        _unpack(emitter, destination, emitter.array(source, storage), storage)
    elif isinstance(source, Vector):
        part = f"u{8 * size_of(storage) // len(source.items)}"
        values = ", ".join(emitter.array(item, part) for item in source.items)
        packed = f"np.stack(({values}), axis=1).view({numpy_name(storage)}).reshape(-1)"
        emitter.write(destination, packed, storage, predicate)
    else:
        emitter.write(destination, emitter.array(source, storage), storage, predicate)


def _unpack(emitter: Emitter, destination: Vector, source: str, storage: str) -> None:
    count = len(destination.items)
    part = f"u{8 * size_of(storage) // count}"
    parts = emitter.temporary(f"{source}.view({numpy_name(part)})", part, borrowed=True)
    for index, item in enumerate(destination.items):
        if not isinstance(item, Sink):
            emitter.write(item, f"np.ascontiguousarray({parts}[{index}::{count}])", part)


@emits("cvta")
def convert_address(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """Address spaces do not overlap here: a generic address is the address in its own space."""
    storage = type_of(instruction)
    if storage not in ("u32", "u64"):
        raise refuse(instruction)
    destination, source = instruction.operands
    emitter.write(destination, emitter.array(source, storage), storage, predicate)


@emits("mapa")
def map_address(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """The same address in the shared memory of another CTA of the cluster."""
    storage = type_of(instruction)
    destination, source, rank = instruction.operands
    address, number = emitter.array(source, storage), emitter.array(rank, "u32")
    expression = f"clusters.map_address({address}, {number})"
    emitter.write(destination, expression, storage, predicate)


@emits("getctarank")
def rank_of_address(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    destination, source = instruction.operands
    address = emitter.array(source, type_of(instruction))
    expression = f"clusters.rank_of({address}, {emitter.special('cluster_ctarank')})"
    emitter.write(destination, expression, "u32", predicate)
