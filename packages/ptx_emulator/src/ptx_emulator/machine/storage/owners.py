# SPDX-License-Identifier: Apache-2.0
"""The array that an address belongs to, where it comes from one array alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from ptx_emulator.machine.lanes import GLOBAL_BASE, LOCAL_BASE, SHARED_BASE
from ptx_emulator.machine.storage.allocation import Allocation
from ptx_emulator.machine.storage.global_memory import GlobalMemory
from ptx_emulator.program.origins import Origin
from ptx_emulator.program.program import Program


class Owner(NamedTuple):
    """The bytes of its memory that an address may reach, and what they are called."""

    begin: int
    end: int
    name: str


Owners = Mapping[int, Owner]  # by instruction


def shared_owners(program: Program, shared_limit: int) -> Owners:
    """Of accesses to shared memory."""
    variables: dict[str, Owner] = {}
    for variable in program.kernel.shared:
        begin = program.symbol_address(variable.name) - SHARED_BASE
        end = shared_limit if variable.size is None else begin + variable.size
        variables[variable.name] = Owner(begin, end, variable.name)
    return {
        pc: variables[names[0]]
        for (space, pc), origins in program.origins.items()
        if space == "shared"
        and len(names := [o.variable for o in origins if o.variable in variables]) == 1
    }


def local_owners(program: Program) -> Owners:
    """Of accesses to local memory. An array of the stack ends where the next one begins."""
    arrays: dict[int, Origin] = {}  # by instruction
    for (space, pc), origins in program.origins.items():
        among = [origin for origin in origins if origin.part is not None]
        if space == "local" and len(among) == 1:
            (arrays[pc],) = among
    owners: dict[Origin, Owner] = {}
    for variable in program.kernel.local:
        mine = {origin for origin in arrays.values() if origin.variable == variable.name}
        begin = program.symbol_address(variable.name) - LOCAL_BASE
        firsts = sorted(origin.part for origin in mine if origin.part is not None)
        for first, end in pairwise([*firsts, variable.size or 0]):
            name = f"the local array of {end - first} bytes"
            owners[Origin(variable.name, part=first)] = Owner(begin + first, begin + end, name)
    return {pc: owners[array] for pc, array in arrays.items()}


def global_owners(program: Program, memory: GlobalMemory, parameters: bytes) -> Owners:
    """Of accesses to global memory; parameters are pointers if they lie in an allocation."""
    owners: dict[int, Owner] = {}
    pointed: dict[tuple[int, ...], Owner | None] = {}
    for pc, offsets in program.pointers:
        if offsets not in pointed:
            values = (parameters[offset : offset + 8] for offset in offsets)
            found = (int.from_bytes(value, "little", signed=True) for value in values)
            pointed[offsets] = _only(memory.find(value - GLOBAL_BASE) for value in found)
        owner = pointed[offsets]
        if owner is not None:
            owners[pc] = owner
    return owners


def _only(found: Iterable[Allocation | None]) -> Owner | None:
    """The owner, if there is one allocation."""
    allocations = [allocation for allocation in found if allocation is not None]
    if len(allocations) != 1:
        return None
    (only,) = allocations
    return Owner(only.start, only.end, only.name or "an allocation")
