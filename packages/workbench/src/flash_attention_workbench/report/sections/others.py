# SPDX-License-Identifier: Apache-2.0
"""Every results file that has no chart, as tables: nothing that is stored is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flash_attention_workbench.bench.stored import Stored
from flash_attention_workbench.report.markup import Markup, element, join, table
from flash_attention_workbench.report.section import Section, lead

ANCHOR, TITLE = "others", "Everything else that is stored"
KNOWN = ("device", "driver", "nvrtc", "torch", "python", "commit", "date", "command", "clocks")
"""What the section on where it was measured says, or what stands beside every row."""


def others_section(stored: Sequence[Stored], shown: Iterable[Section]) -> Section | None:
    """The files that none of the sections shows; no section if there are none."""
    elsewhere = {name for section in shown for name in section.sources}
    rest = [one for one in stored if one.path.name not in elsewhere]
    if not rest:
        return None
    about = lead("A fold a file, as it was written. Its numbers are in the documents, too.")
    body = join((about, *map(_file, rest)))
    return Section(ANCHOR, TITLE, body, sources=tuple(one.path.name for one in rest))


def _file(one: Stored) -> Markup:
    fields = {name: value for name, value in one.record.items() if name not in KNOWN}
    tables = [_table(name, fields.pop(name)) for name in [*fields] if _is_table(fields[name])]
    words = fields.pop("text", None)
    facts = [[name, shown(value)] for name, value in fields.items()]
    parts = [table(["", ""], facts, caption="What it holds", left=2)] if facts else []
    if words is not None:
        parts.append(element("pre", element("code", words), class_="diff", tabindex=0))
    summary = element("summary", one.path.name, f" {_counted(one.record)}")
    return element("details", summary, *parts, *tables, class_="fold")


def _counted(record: Mapping[str, Any]) -> str:
    rows = record.get("rows")
    return f"({len(rows):,} rows)" if isinstance(rows, list) and rows else ""


def _is_table(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(row, dict) and dict(_flattened(row)) for row in value)


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> Markup:
    flat = [dict(_flattened(row)) for row in rows]
    columns = list(dict.fromkeys(column for row in flat for column in row))
    lines = [[shown(row.get(column, "")) for column in columns] for row in flat]
    return table(columns, lines, caption=name, left=1)


def _flattened(row: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The fields of a row; those of an object in it under both names."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{name}: {inner}", found) for inner, found in value.items())
        else:
            yield name, value


def shown(value: object) -> str:
    """A value as a person reads it."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, dict):
        return "; ".join(f"{name}: {shown(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    return "" if value is None else str(value)
