# SPDX-License-Identifier: Apache-2.0
"""Tells what a run does at chosen lines, and who changes chosen elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import UnsupportedError
from ptx_emulator.machine.lanes import GLOBAL_BASE, LOCAL_BASE, SHARED_BASE, WARP_SIZE, Selection
from ptx_emulator.machine.machine import Machine
from ptx_emulator.machine.storage.storage import POISON
from ptx_emulator.program.hooks import Hooks
from ptx_emulator.ptx.model import Instruction, Memory, Reg
from ptx_emulator.types import STORAGE, STORAGE_OF_PTX
from ptx_emulator.user_kernel.arguments import Placed
from ptx_emulator.user_kernel.debugging import Debug, Stop, Watched, hooks_of
from ptx_emulator.user_kernel.places import place_of, plain_variable

MOST_TOLD = 200  # changes and stops
_POISON: NDArray[Any] = np.full(4, POISON, np.uint32)


@dataclass(frozen=True)
class _Place:
    """Elements that are watched, and the address of the first as threads see it."""

    watched: Watched
    dtype: np.dtype[Any]
    address: int


class UserDebugger:
    """`arrays` are the arguments in memory, by their names."""

    def __init__(
        self,
        debug: Debug,
        watched: Sequence[Watched],
        stops: Mapping[int, Stop],
        arrays: Mapping[str, Placed],
    ) -> None:
        self._debug = debug
        self._watched = watched
        self._stops = stops
        self._arrays = arrays
        self._told = 0
        self._places: list[tuple[_Place, NDArray[Any]]] = []
        self.hooks: Hooks = hooks_of(stops, watching=bool(watched))

    def attach(self, machine: Machine) -> None:
        self._machine = machine
        everyone = machine.lanes.all
        cta, thread = self._threads(everyone)
        chosen = (cta == self._debug.cta) & (thread == self._debug.thread)
        if not chosen.any():
            raise UnsupportedError(
                f"there is no thread {self._debug.thread} of CTA {self._debug.cta}; the launch has"
                f" {cta.max() + 1} CTAs of {machine.block} threads"
            )
        self._shared_base = int(everyone.shared_base[chosen.argmax()])
        places = [self._find(watched) for watched in self._watched]
        self._places = [(place, self._read(place)) for place in places]

    def look(self, s: Selection, pc: int, address: Any = None, nbytes: int = 0) -> None:
        """Tell of elements that changed."""
        for number, (place, before) in enumerate(self._places):
            now = self._read(place)
            if now.tobytes() == before.tobytes():
                continue
            self._places[number] = place, now
            size = place.dtype.itemsize
            for index in range(len(now)):
                if now[index].tobytes() == before[index].tobytes():
                    continue
                who = self._writer(s, place.address + index * size, address, nbytes)
                old, new = (_shown(each[index]) for each in (before, now))
                name = f"{place.watched.name}[{place.watched.first + index}]"
                self._tell(f"{name}: {old} -> {new}, {self._line(pc)}{who}")

    def stop(self, s: Selection, pc: int, registers: Mapping[str, Any]) -> None:
        """Tell of registers and memory, if the thread is among those that come by."""
        debug, stop = self._debug, self._stops[pc]
        cta, thread = self._threads(s)
        there = (cta == debug.cta) & (thread == debug.thread)
        if not there.any():
            return
        lane = int(there.argmax())
        values = {name: each[lane] for name, each in registers.items()}
        lines = [f"{stop.line}, CTA {debug.cta} thread {debug.thread}, {self._line(pc)}"]
        lines += [f"  {name} = {_register(value)}" for name, value in values.items()]
        accessed = (line for each in stop.instructions for line in self._memory_of(each, values))
        lines += dict.fromkeys(accessed)
        for place, _ in self._places:
            elements = " ".join(map(_shown, self._read(place)))
            watched = place.watched
            lines.append(f"  {watched.name}[{watched.first}:{watched.last}] = {elements}")
        self._tell("\n".join(lines))

    def _tell(self, text: str) -> None:
        self._told += 1
        if self._told == MOST_TOLD:
            text += "\nmore is not told"
        if self._told <= MOST_TOLD:
            self._debug.tell(text)

    def _line(self, pc: int) -> str:
        instruction = self._machine.program.kernel.instructions[pc]
        place = instruction.location
        source = f" ({PurePath(place[0]).name}:{place[1]})" if place else ""
        return f"PTX line {instruction.ptx_line}{source}"

    def _memory_of(self, instruction: Instruction, values: Mapping[str, Any]) -> list[str]:
        """What lies where an instruction of the thread accesses memory."""
        kind = STORAGE_OF_PTX.get(instruction.parts[-1])
        found = []
        for operand in instruction.operands:
            if kind is None or not isinstance(operand, Memory) or not isinstance(operand.base, Reg):
                continue
            address = int(values[operand.base.name]) + operand.offset
            dtype = np.dtype(STORAGE[kind])
            data = self._bytes(address, dtype.itemsize)
            if data is None:
                continue
            memory = self._machine.global_access.memory
            name = place_of(address, self._machine.program, memory) or f"{address:#x}"
            value = _shown(data.view(dtype)[0])
            found.append(f"  [{operand.base.name}+{operand.offset}], {name}: {value}")
        return found

    def _bytes(self, address: int, size: int) -> NDArray[np.uint8] | None:
        """Bytes of global memory, or of the shared memory of the thread's CTA."""
        machine = self._machine
        if address >= GLOBAL_BASE:
            offset, data = address - GLOBAL_BASE, machine.global_access.storage.bytes
            known = machine.global_access.memory.find(offset) is not None
        elif SHARED_BASE <= address < LOCAL_BASE:
            known = address - SHARED_BASE + size <= machine.shared_limit
            offset, data = address + self._shared_base, machine.shared.bytes
        else:
            return None
        return data[offset : offset + size].copy() if known else None

    def _read(self, place: _Place) -> NDArray[Any]:
        count = place.watched.last - place.watched.first
        data = self._bytes(place.address, count * place.dtype.itemsize)
        return np.zeros(0, place.dtype) if data is None else data.view(place.dtype)

    def _writer(self, s: Selection, element: int, address: Any, nbytes: int) -> str:
        """The thread that wrote an element; the last, where several did."""
        if address is None:
            return ", by a copy or by a whole warp"
        start = address.astype(np.int64)
        there = (start <= element) & (element < start + nbytes)
        cta, thread = self._threads(s)
        if element < LOCAL_BASE:
            there &= cta == self._debug.cta
        if not there.any():
            return ", by a copy that landed before"
        lane = int(np.flatnonzero(there)[-1])
        return f", by CTA {cta[lane]} warp {thread[lane] // WARP_SIZE} lane {s.lane[lane]}"

    def _threads(self, s: Selection) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The CTAs of lanes, and their numbers there."""
        clusters = self._machine.clusters
        return clusters.cta(s.cta, s.warp), clusters.warp(s.warp) * WARP_SIZE + s.lane

    def _find(self, watched: Watched) -> _Place:
        """Where the elements are; arguments come before variables of the same name."""
        program, memory = self._machine.program, self._machine.global_access.memory
        kinds = watched.dtype
        known = {name: (a.address, a.dtype, a.nbytes) for name, a in self._arrays.items()}
        for variable in program.kernel.module:
            known.setdefault(variable.name, (memory.variable(variable), kinds, variable.size or 0))
        limit = self._machine.shared_limit + SHARED_BASE
        for variable in program.kernel.shared:
            start = program.shared_addresses[variable.name]
            size = limit - start if variable.size is None else variable.size
            known.setdefault(plain_variable(variable.name), (start, kinds, size))
        if watched.name not in known:
            raise UnsupportedError(
                f"there is no array {watched.name} to watch; the kernel has {', '.join(known)}"
            )
        start, dtype, size = known[watched.name]
        if watched.last * dtype.itemsize > size:
            raise UnsupportedError(
                f"{watched.name} has {size // dtype.itemsize} elements of {dtype.name};"
                f" {watched.name}[{watched.first}:{watched.last}] is outside of it"
            )
        return _Place(watched, dtype, start + watched.first * dtype.itemsize)


def _shown(value: Any) -> str:
    """An element, or that nothing was written there."""
    if value.tobytes() == _POISON.view(value.dtype)[0].tobytes():
        return "unwritten"
    return f"{value:.6g}" if value.dtype.kind == "f" else str(value)


def _register(value: Any) -> str:
    if isinstance(value, np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, np.floating):
        return f"{value:.6g}"
    return f"{int(value)} ({int(value):#x})"
