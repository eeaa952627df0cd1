# SPDX-License-Identifier: Apache-2.0
"""What a kernel says: printf, and assertions that do not hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.access import Mask, Thread, executing
from ptx_emulator.machine.lanes import Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.generic import GenericAccess

Addresses = NDArray[np.uint64]

LONGEST = 1 << 14  # bytes of a text whose end is missing
_DIRECTIVE = re.compile(r"%([-+ #0]*)(\*|\d+)?(\.(?:\*|\d+))?(hh|h|ll|l|z|j|t|L)?([%a-zA-Z])")
_FLOATS = "fFeEgGaA"
_LONG = ("l", "ll", "z", "j", "t")


class Printer:
    """Text that lanes print, one after the other."""

    def __init__(self, launch: Launch, memory: GenericAccess) -> None:
        self._launch = launch
        self._memory = memory
        self.texts: list[str] = []

    def print(
        self, s: Selection, text: Addresses, arguments: Addresses, mask: Mask, pc: int
    ) -> NDArray[np.uint32]:
        """vprintf: every lane prints its own text; how many arguments it had."""
        counts = np.zeros(s.count, np.uint32)
        for thread in executing(s, mask, pc):
            form = self._string(thread, int(text[thread.lane]))
            words = _Arguments(self, thread, int(arguments[thread.lane]))
            self._check_types(thread, form)
            self.texts.append(_DIRECTIVE.sub(words.convert, form))
            counts[thread.lane] = words.taken
        return counts

    def _check_types(self, thread: Thread, form: str) -> None:
        """Compare what a text asks for with what the kernel stored for it."""
        given = self._launch.program.given_to_printf.get(thread.pc)
        if given is None or not self._launch.checks:
            return
        place = 0
        for directive, size, is_float in _wanted(form):
            place = -(-place // size) * size
            types = given.get(place, set())
            if not any(_fits(type, size, is_float) for type in types):
                detail = f"{directive} of printf has no argument"
                if types:
                    detail = f"{directive} of printf gets an argument of type {min(types)}"
                self._launch.findings.report_thread("printf-format", detail, thread)
                return
            place += size

    def fail(
        self,
        s: Selection,
        message: Addresses,
        file: Addresses,
        line: NDArray[np.uint32],
        mask: Mask,
        pc: int,
    ) -> None:
        """__assertfail: an assertion ends the launch, as on the hardware."""
        for thread in executing(s, mask, pc):
            said = self._string(thread, int(message[thread.lane]))
            where = self._string(thread, int(file[thread.lane]))
            raise EmulatorError(
                f"{where}:{int(line[thread.lane])}: assertion `{said}` failed in CTA {thread.cta}"
                f" warp {thread.warp} lane {int(s.lane[thread.lane])}"
            )

    def load(self, thread: Thread, address: int, size: int) -> bytes:
        """Bytes that one thread reads at a generic address."""
        where = np.full(thread.sel.count, address, np.uint64)
        (found,) = self._memory.load(thread.sel, where, size, 1, thread.mask, thread.pc)
        value: Any = found[thread.lane]
        return bytes(value.tobytes())

    def _string(self, thread: Thread, address: int) -> str:
        text = bytearray()
        while len(text) < LONGEST and (byte := self.load(thread, address + len(text), 1)) != b"\0":
            text += byte
        return text.decode(errors="replace")

    def string_at(self, thread: Thread, pointer: bytes) -> str:
        return self._string(thread, int.from_bytes(pointer, "little"))


def _wanted(form: str) -> Iterator[tuple[str, int, bool]]:
    """The arguments that a text asks for: a directive, how many bytes, whether a float."""
    for match in _DIRECTIVE.finditer(form):
        _, width, precision, length, kind = match.groups()
        yield from [(match[0], 4, False)] * ((width == "*") + (precision == ".*"))
        if kind in _FLOATS:
            yield match[0], 8, True
        elif kind != "%":
            yield match[0], 8 if kind in "sp" or length in _LONG else 4, False


def _fits(type: str, size: int, is_float: bool) -> bool:
    """Whether what is stored as a type of PTX may be such an argument; b64 may be any of 8."""
    if type == "b64":
        return size == 8
    return int(type[1:]) == 8 * size and (type[0] == "f") == is_float


class _Arguments:
    """The arguments of one printf, each at a multiple of its own size."""

    def __init__(self, printer: Printer, thread: Thread, address: int) -> None:
        self._printer = printer
        self._thread = thread
        self._address = address
        self.taken = 0

    def convert(self, match: re.Match[str]) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        width = str(self._integer(4)) if width == "*" else width or ""
        precision = f".{self._integer(4)}" if precision == ".*" else precision or ""
        form = f"%{flags}{width}{precision}"
        if kind in _FLOATS:
            value = float(np.frombuffer(self._take(8), np.float64)[0])
            return value.hex() if kind in "aA" else f"{form}{kind}" % value
        if kind == "s":
            return f"{form}s" % self._printer.string_at(self._thread, self._take(8))
        if kind == "p":
            return f"{form}s" % hex(self._integer(8, signed=False))
        if kind == "c":
            return f"{form}c" % chr(self._integer(4) & 0xFF)
        size = 8 if length in _LONG else 4
        number = self._integer(size, signed=kind in "di")
        return f"{form}{'d' if kind in 'diu' else kind}" % number

    def _integer(self, size: int, signed: bool = True) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)

    def _take(self, size: int) -> bytes:
        self._address = -(-self._address // size) * size
        found = self._printer.load(self._thread, self._address, size)
        self._address += size
        self.taken += 1
        return found
