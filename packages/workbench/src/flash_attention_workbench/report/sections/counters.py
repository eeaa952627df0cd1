# SPDX-License-Identifier: Apache-2.0
"""What emulator and compiler count of every rung, without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flash_attention_workbench.bench.stored import Stored, newest
from flash_attention_workbench.report import plane
from flash_attention_workbench.report.markup import Markup, element, join, table
from flash_attention_workbench.report.rungs import Ladder
from flash_attention_workbench.report.section import Section, lead, numbers

_HEIGHT, _TOP, _BOTTOM = 150.0, 18.0, 130.0
_SPAN = (10.0, 100.0)

Row = Mapping[str, Any]

CHARTS: tuple[tuple[str, Callable[[Row], float]], ...] = (
    (
        "Warp instructions a tile and block",
        lambda row: row["emulated"]["instructions / key block"],
    ),
    (
        "Shared-memory wavefronts for each one needed",
        lambda row: row["emulated"]["wavefronts / needed"],
    ),
    (
        "32-byte sectors a request of global memory",
        lambda row: row["emulated"]["sectors / request"],
    ),
    ("Registers a thread", lambda row: row["registers"]),
)


def counters_section(stored: Sequence[Stored], ladder: Ladder) -> Section:
    """A small chart a counter, a column a rung."""
    anchor, title = ladder.counters_anchor, ladder.counters_title
    found = newest(stored, ladder.emulated)
    if found is None:
        missing = (
            f"No counters: `flash-attention ladder run{ladder.option} --arch sm_90 --json FILE`"
            " stores them, without a GPU."
        )
        return Section(anchor, title, None, missing)
    rows = found.record["rows"]
    batch, seq, heads, d_head = found.record["shape"]
    arches = ", ".join(dict.fromkeys(row["arch"] for row in rows))
    about = lead(
        f"Every rung compiled for {arches} and run in the PTX emulator: batch {batch}, {seq} "
        f"rows, {heads} heads of {d_head}, {found.record['dtype']}. A column is a rung and leads "
        "to it. The families, light and dark, have tiles of their own: compare within one."
    )
    charts = [_chart(name, [(row, value(row)) for row in rows], ladder) for name, value in CHARTS]
    body = join((about, element("div", *charts, class_="multiples two"), numbers(_table(rows))))
    return Section(anchor, title, body, sources=(found.path.name,))


def _chart(title: str, values: Sequence[tuple[Row, float]], ladder: Ladder) -> Markup:
    top = 1.05 * max(value for _, value in values)
    up = plane.Scale((0, top), (_BOTTOM, _TOP))
    parts = plane.level_lines(up, plane.nice_ticks(top, 4))
    step = (_SPAN[1] - _SPAN[0]) / len(values)
    newer = ladder.newer_family
    for place, (row, value) in enumerate(values):
        x, y = _SPAN[0] + step * place, up(value)
        class_ = "bar newer" if row["rung"] in newer else "bar"
        column = plane.box(x + 0.14 * step, y, 0.72 * step, _BOTTOM - y, class_)
        tip = f"{row['rung']} {row['name']}: {_number(value)}"
        touch = element(
            "rect",
            x=plane.percent(x),
            y=plane.pixels(_TOP),
            width=plane.percent(step),
            height=plane.pixels(_BOTTOM - _TOP),
            class_="touch",
            data_tip=tip,
        )
        parts.append(element("a", column, touch, href=f"#{ladder.place(row['rung'])}", tabindex=-1))
        if row["rung"] == 1 or row["rung"] % 4 == 0:
            middle = x + step / 2
            parts.append(plane.text(middle, _BOTTOM + 15, row["rung"], "tick", anchor="middle"))
    first, last = values[0][1], values[-1][1]
    label = f"{title}: {_number(first)} at the first rung, {_number(last)} at the last"
    return element("figure", element("figcaption", title), plane.svg(_HEIGHT, *parts, label=label))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:,.2f}"


def _table(rows: Sequence[Row]) -> Markup:
    names = [name for name in rows[0]["emulated"] if name not in ("error", "allowed")]
    lines = [
        [
            f"{row['rung']} {row['name']}",
            *(_number(row["emulated"][name]) for name in names),
            _number(row["registers"]),
            _number(sum(row["opcodes"].values())),
            f"{100 * row['emulated']['error'] / row['emulated']['allowed']:.0f} %",
        ]
        for row in rows
    ]
    language = rows[0]["language"]
    header = ["rung", *names, "registers", f"{language} instructions", "error, of allowed"]
    return table(header, lines, caption="Counters of every rung")
