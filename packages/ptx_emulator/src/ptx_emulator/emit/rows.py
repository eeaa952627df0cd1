# SPDX-License-Identifier: Apache-2.0
"""Arrays with a row for each of many values."""

from __future__ import annotations

from collections.abc import Sequence

from ptx_emulator.emit.temporaries import Temporaries


class Rows:
    """Arrays of many rows, and the temporaries that are rows of them."""

    def __init__(self, temporaries: Temporaries) -> None:
        self._temporaries = temporaries
        self._places: dict[str, tuple[str, int]] = {}  # of a row: its array, its number
        self._counts: dict[str, int] = {}

    def of(self, array: str, count: int, storage: str) -> list[str]:
        """Names of the rows of an array."""
        self._counts[array] = count
        names = [f"{array}[{row}]" for row in range(count)]
        for row, name in enumerate(names):
            self._places[name] = array, row
            self._temporaries.declare(name, storage)
        return names

    def stacked(self, names: Sequence[str]) -> str:
        """An expression for the array whose rows have these names."""
        pieces = self._pieces(names)
        if len(pieces) == 1 and len(names) > 1:
            return pieces[0]
        flat = [piece if piece in names else f"{piece}.reshape(-1)" for piece in pieces]
        return f"np.concatenate(({', '.join(flat)},)).reshape({len(names)}, n)"

    def _pieces(self, names: Sequence[str]) -> list[str]:
        """The names, neighbours in one array together."""
        places = [self._places.get(name) for name in names]
        evenly = self._evenly(places)
        if evenly is not None:
            return [evenly]
        pieces: list[str] = []
        first = 0
        for last, name in enumerate(names):
            here, after = places[last], places[last + 1] if last + 1 < len(names) else None
            if here is not None and after == (here[0], here[1] + 1):
                continue
            start = places[first]
            if last > first and here is not None and start is not None:
                pieces.append(f"{here[0]}[{start[1]}:{here[1] + 1}]")
            else:
                pieces.append(name)
            first = last + 1
        return pieces

    def _evenly(self, places: Sequence[tuple[str, int] | None]) -> str | None:
        """A slice of one array, if the places are one."""
        known = [place for place in places if place is not None]
        arrays = {array for array, _ in known}
        if len(known) != len(places) or len(arrays) != 1 or len(known) < 2:
            return None
        (array,) = arrays
        rows = [row for _, row in known]
        step = rows[1] - rows[0]
        if step < 1 or rows != list(range(rows[0], rows[-1] + 1, step)):
            return None
        if rows == list(range(self._counts[array])):
            return array
        return f"{array}[{rows[0]}:{rows[-1] + 1}:{step}]"
