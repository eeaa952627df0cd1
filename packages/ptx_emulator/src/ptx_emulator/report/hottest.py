# SPDX-License-Identifier: Apache-2.0
"""The source lines of a kernel that use memory most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptx_emulator.machine.launch.counters import Counters
from ptx_emulator.report.findings import FROM_HERE

PLACES_SHOWN = 8
SHARED = {"requests": "requests", "wavefronts": "wavefronts", "ideal": "needed"}
GLOBAL = {"requests": "requests", "sectors": "sectors", "ideal_sectors": "needed", "bytes": "bytes"}


@dataclass(frozen=True)
class Hottest:
    """A table of places; a row has an opcode, a source line and then numbers."""

    title: str
    numbers: tuple[str, ...]  # their headings
    rows: tuple[tuple[str, ...], ...]


def ends_of_calls(source: str) -> str:
    """Where an access is, and the line of the kernel that it was inlined into."""
    return ", called from ".join(FROM_HERE.places(source))


def hottest_places(
    counters: Counters, shorten: Callable[[str], str] = ends_of_calls
) -> Iterator[Hottest]:
    """The hottest places in shared and in global memory."""
    counts = counters.to_dict()
    for where, keys in (("shared", SHARED), ("global", GLOBAL)):
        if counts[where]:
            yield _hottest(where, counts[where], keys, shorten)


def _hottest(
    where: str,
    sites: Sequence[Mapping[str, Any]],
    keys: Mapping[str, str],
    shorten: Callable[[str], str],
) -> Hottest:
    """Sites of one opcode on one source line together; `keys` are counts and their headings."""
    places: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for site in sites:
        source = shorten(str(site["source"] or "")).replace(", called from ", ", from ")
        places.setdefault((str(site["opcode"]), source), []).append(site)
    totals = {
        place: [sum(site[key] for site in group) for key in keys] for place, group in places.items()
    }
    rows = []
    for place in sorted(totals, key=lambda place: -totals[place][1])[:PLACES_SHOWN]:
        lines = [site["ptx_line"] for site in places[place]]
        numbers = (len(lines), min(lines), *totals[place])
        rows.append((*place, *(f"{number:,}" for number in numbers)))
    headings = ("places in PTX", "first line", *keys.values())
    return Hottest(f"hottest in {where} memory", headings, tuple(rows))
