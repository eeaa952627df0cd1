# SPDX-License-Identifier: Apache-2.0
"""The lines of a function, the temporaries that they assign, and which of them holds a register."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ptx_emulator.types import numpy_name, size_of

_NAME = re.compile(r"\bt\d+\b")  # of a temporary
_CALL = re.compile(r"\bm\.")  # of the machine, whose checks take memory too


def with_deletions(lines: Sequence[str]) -> Iterator[str]:
    """Lines, and before each call of the machine the deletion of what nobody reads again: a
    temporary has a value for every lane. Texts in quotes may look like names of temporaries."""
    last = {name: place for place, line in enumerate(lines) for name in _NAME.findall(line)}
    assigned: set[str] = set()
    dead: list[str] = []
    for place, line in enumerate(lines):
        if dead and _CALL.search(line):
            yield f"del {', '.join(dead)}"
            dead = []
        yield line
        assigned.update(_NAME.findall(line.partition(" = ")[0]))
        names = dict.fromkeys(_NAME.findall(line))
        dead += [name for name in names if last[name] == place and name in assigned]


class Temporaries:
    """The text of a block in SSA form, as far as it is written."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._count = 0
        self._types: dict[str, str] = {}
        self._current: dict[str, str] = {}  # register -> the temporary that holds it
        self._views: dict[tuple[str, str], str] = {}
        self._borrowed: set[str] = set()  # temporaries that share memory with something else

    def line(self, text: str) -> None:
        self._lines.append(text)

    def names(self, count: int, storage: str) -> list[str]:
        """Fresh names, to be assigned by the caller's own line."""
        fresh = [f"t{self._count + i}" for i in range(count)]
        self._count += count
        for name in fresh:
            self._types[name] = storage
        return fresh

    def declare(self, name: str, storage: str) -> None:
        """An expression that may stand for a temporary."""
        self._types[name] = storage

    def storage_of(self, name: str) -> str:
        return self._types[name]

    def is_temporary(self, name: str) -> bool:
        return name in self._types

    def temporary(self, expression: str, storage: str, *, borrowed: bool = False) -> str:
        (name,) = self.names(1, storage)
        self.line(f"{name} = {expression}")
        if borrowed:
            self._borrowed.add(name)
        return name

    def borrow(self, names: Iterable[str]) -> None:
        """These temporaries are views of one array: a copy is stored, not they themselves."""
        self._borrowed.update(names)

    def cast(self, name: str, storage: str) -> str:
        """The same bits under another type; a wider register gives its low part."""
        have = self._types[name]
        if have == storage:
            return name
        key = (name, storage)
        if key not in self._views:
            if size_of(have) != size_of(storage):
                narrow = f"u{8 * size_of(storage)}"
                wide = self.cast(name, f"u{8 * size_of(have)}")
                low = self.temporary(f"{wide}.astype({numpy_name(narrow)})", narrow)
                self._views[key] = self.cast(low, storage)
            else:
                self._views[key] = self.temporary(
                    f"{name}.view({numpy_name(storage)})", storage, borrowed=True
                )
        return self._views[key]

    def bind(self, register: str, name: str) -> None:
        """A register has the value of a temporary from here on."""
        self._current[register] = name
