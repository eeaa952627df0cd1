# SPDX-License-Identifier: Apache-2.0
"""The source lines of a kernel that use memory most, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from flash_attention.emulator import Counters
from flash_attention.tools.commands.console import add_number_columns, output, report_table
from flash_attention.tools.plants import shortened

PLACES_SHOWN = 8
SHARED = {"requests": "requests", "wavefronts": "wavefronts", "ideal": "needed"}
GLOBAL = {"requests": "requests", "sectors": "sectors", "ideal_sectors": "needed", "bytes": "bytes"}


def print_sites(counters: Counters) -> None:
    """The hottest places in shared and in global memory."""
    counts = counters.to_dict()
    for where, keys in (("shared", SHARED), ("global", GLOBAL)):
        if counts[where]:
            output.print(_hottest(where, counts[where], keys))


def _hottest(where: str, sites: Sequence[Mapping[str, Any]], keys: Mapping[str, str]) -> Table:
    """Sites of one opcode on one source line together; `keys` are counts and their headings."""
    table = report_table(f"hottest in {where} memory")
    table.add_column("source", overflow="fold")
    add_number_columns(table, ("places in PTX", "first line", *keys.values()))
    places: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for site in sites:
        places.setdefault((str(site["opcode"]), _source(site)), []).append(site)
    totals = {
        place: [sum(site[key] for site in group) for key in keys] for place, group in places.items()
    }
    for place in sorted(totals, key=lambda place: -totals[place][1])[:PLACES_SHOWN]:
        opcode, source = place
        lines = [site["ptx_line"] for site in places[place]]
        numbers = (f"{number:,}" for number in (len(lines), min(lines), *totals[place]))
        table.add_row(opcode, source, *numbers)
    return table


def _source(site: Mapping[str, Any]) -> str:
    """The place in the CUDA text and its caller, headers as they are included."""
    return escape(shortened(str(site["source"] or "")).replace(", called from ", ", from "))
