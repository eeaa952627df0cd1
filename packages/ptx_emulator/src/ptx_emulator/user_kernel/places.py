# SPDX-License-Identifier: Apache-2.0
"""An address as people say it: a variable or an array, and how far into it."""

from __future__ import annotations

import re

from ptx_emulator.machine.lanes import GLOBAL_BASE, LOCAL_BASE
from ptx_emulator.machine.storage.global_memory import GlobalMemory
from ptx_emulator.program.program import Program

_LAST_NAME = re.compile(r".*E(\d+)")  # the length of a mangled local variable's own name


def place_of(address: int | None, program: Program, memory: GlobalMemory) -> str:
    """What lies at an address; nothing is said of what is not known."""
    if address is None:
        return ""
    if address >= GLOBAL_BASE:
        return _in_global_memory(address - GLOBAL_BASE, memory)
    if address >= LOCAL_BASE:
        return ""
    starts = {program.shared_addresses[v.name]: v.name for v in program.kernel.shared}
    below = [start for start in starts if start <= address]
    return _offset(plain_variable(starts[max(below)]), address - max(below)) if below else ""


def _in_global_memory(offset: int, memory: GlobalMemory) -> str:
    inside = memory.find(offset)
    allocation = inside or memory.beside(offset)
    if allocation is None or not allocation.name:
        return ""
    if offset < allocation.start:
        return f"{allocation.start - offset} bytes before {allocation.name}"
    place = _offset(allocation.name, offset - allocation.start)
    return place if inside else f"{place}, past its end"


def plain_variable(name: str) -> str:
    """The name of a variable in C++, without the function that it is local to."""
    found = _LAST_NAME.match(name) if name.startswith("_Z") else None
    return name[found.end() : found.end() + int(found[1])] if found else name


def _offset(name: str, offset: int) -> str:
    return f"{name} + {offset} bytes" if offset else name
