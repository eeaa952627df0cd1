# SPDX-License-Identifier: Apache-2.0
"""Places in CUDA text: a line, and the lines from which the function that it is in was inlined."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ptx_emulator.errors import PtxError, quoted

Line = tuple[str, int]  # file, line
_LOC = re.compile(r"\.loc((?:\s+\d+){2,3})\b(?:.*\binlined_at((?:\s+\d+){2,3}))?")


class Places:
    """The place that the last .loc of a kernel names.

    A .loc names the place that it was inlined at. That place had a .loc just before.
    """

    def __init__(self, files: Mapping[int, str]) -> None:
        self._files = files
        self._inlined_at: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._chains: dict[tuple[Line, ...], tuple[Line, ...]] = {}  # one of those that are equal
        self.location: Line | None = None
        self.callers: tuple[Line, ...] = ()

    def locate(self, directive: str, line: int) -> None:
        """Read a .loc at a line of the PTX."""
        match = _LOC.match(directive)
        if match is None:
            raise PtxError(f"cannot read {quoted(directive)}", line)
        here = tuple(map(int, match[1].split()))
        caller = tuple(map(int, (match[2] or "").split()))
        self._inlined_at[here] = caller
        self.location = self._place(here)
        chain = self._chain(caller)
        self.callers = self._chains.setdefault(chain, chain)

    def _chain(self, caller: tuple[int, ...]) -> tuple[Line, ...]:
        """Where a function was inlined, and where that function was, up to the kernel."""
        found: list[Line] = []
        seen: set[tuple[int, ...]] = set()
        while caller and caller not in seen:
            seen.add(caller)
            place = self._place(caller)
            found += [place] if place is not None else []
            caller = self._inlined_at.get(caller, ())
        return tuple(found)

    def _place(self, at: tuple[int, ...]) -> Line | None:
        file = self._files.get(at[0])
        return (file, at[1]) if file is not None and at[1] else None
