# SPDX-License-Identifier: Apache-2.0
"""The problems of models: decoding, packed sequences, windows, shared heads. A strip a problem."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.grid_run import GridRow
from flash_attention_workbench.bench.grid_summary import (
    NAMES,
    has_shapes,
    mean_ratio,
    point_of,
    rivals,
    selected_rows,
    speed,
    unit,
)
from flash_attention_workbench.bench.peers.gradients import FA3_DETERMINISTIC
from flash_attention_workbench.bench.stored import CANDIDATES, GRADIENTS, GRID, Stored, of_kind
from flash_attention_workbench.report import plane
from flash_attention_workbench.report.markup import Markup, element, join, table
from flash_attention_workbench.report.section import Section, lead, numbers
from flash_attention_workbench.report.sections.peers import ratio_cell

ANCHOR, TITLE = "shapes", "The shapes of models"
TITLES = {
    "decode": "Decoding: few queries, a long KV cache",
    "prefill_gqa": "Prefill with grouped heads of K and V",
    "varlen": "Packed sequences of different lengths",
    "window": "A sliding window",
    "model_shapes": "Shapes of known models, with a table tuned for them",
    "backward_gqa": "Gradients with grouped heads of K and V",
    "backward_varlen": "Gradients of packed sequences",
}
OURS = "ours"
_ROW, _AXIS = 24.0, 20.0
_SPAN = (1.0, 97.0)


def shapes_section(stored: Sequence[Stored]) -> Section:
    """The newest file of every grid that is more than self-attention of one length."""
    found: dict[str, Stored] = {}
    for one in (one for kind in (GRID, CANDIDATES, GRADIENTS) for one in of_kind(stored, kind)):
        if has_shapes(grid_rows(one.record)):
            found.setdefault(one.record["grid"], one)
    if not found:
        missing = "No shapes of models were measured: `flash-attention bench --grid decode` does."
        return Section(ANCHOR, TITLE, None, missing)
    order = sorted(found, key=lambda name: ([*TITLES, name].index(name), name))
    about = lead(
        "A dot is a kernel, placed by its speed: TFLOP/s, and when decoding the bytes of K and V "
        f"a second, which bound it. Beside it, how many times as fast as the faster of {rivals()} "
        "ours is. Medians with a cold L2. ",
        *_legend(),
    )
    figures = [_figure(name, selected_rows(grid_rows(found[name].record))) for name in order]
    sources = tuple(found[name].path.name for name in order)
    return Section(ANCHOR, TITLE, join((about, *figures)), sources=sources)


def _legend() -> list[object]:
    parts: list[object] = []
    for name in (OURS, "fa3", "cudnn", "fa2"):
        key = element("span", class_=f"key {name}")
        parts += [element("span", key, NAMES.get(name, name), class_="named"), " "]
    return parts


def _figure(grid: str, rows: Sequence[GridRow]) -> Markup:
    speeds = [_speeds(row) for row in rows]
    top = max(value for by_name in speeds for value in by_name.values())
    scale = plane.Scale((0, top), _SPAN)
    mean = mean_ratio(rows)
    title = TITLES.get(grid, grid)
    caption = title if mean is None else f"{title}: {mean:.2f} times in geometric mean"
    strips = [
        _strip(row, by_name, scale, unit(rows)) for row, by_name in zip(rows, speeds, strict=True)
    ]
    return element(
        "figure",
        element("figcaption", caption),
        element("div", _axis(scale, unit(rows)), *strips, class_="strips"),
        numbers(_table(grid, rows, speeds)),
        class_="shapes",
    )


def _speeds(row: GridRow) -> dict[str, float]:
    """Peers first, so that ours is drawn over them; a wrong kernel has no speed."""
    found = {name: speed(row, ms) for name, ms in row.peers.items() if name != FA3_DETERMINISTIC}
    return found | ({OURS: speed(row, row.ms)} if row.ok else {})


def _axis(scale: plane.Scale, words: str) -> Markup:
    ticks = plane.nice_ticks(scale.domain[1], 4)
    parts = [
        plane.text(scale(tick), 13, f"{tick:,g}", "tick", anchor="start" if not tick else "middle")
        for tick in ticks
    ]
    return _line(element("span", words, class_="name"), plane.svg(_AXIS, *parts), "times")


def _strip(row: GridRow, speeds: dict[str, float], scale: plane.Scale, words: str) -> Markup:
    label = point_of(row).label
    parts = [plane.line(_SPAN[0], _ROW / 2, _SPAN[1], _ROW / 2, "grid")]
    for name, value in speeds.items():
        tip = f"{NAMES.get(name, name)}: {value:,.0f} {words}"
        radius = 5.0 if name == OURS else 4.0
        parts.append(plane.dot(scale(value), _ROW / 2, radius, f"spot {name}", tip))
    said = "; ".join(f"{NAMES.get(name, name)} {value:,.0f}" for name, value in speeds.items())
    picture = plane.svg(_ROW, *parts, label=f"{label}, {words}: {said}")
    times = "" if row.ratio is None else f"{row.ratio:.2f}" if row.ok else "wrong"
    return _line(element("span", label, class_="name", title=label), picture, times)


def _line(name: Markup, picture: Markup, times: str) -> Markup:
    return element("div", name, picture, element("span", times, class_="times"), class_="strip")


def _table(grid: str, rows: Sequence[GridRow], speeds: Sequence[dict[str, float]]) -> Markup:
    names = [OURS, *dict.fromkeys(name for one in speeds for name in one if name != OURS)]
    columns = {
        "copy, GB/s": [row.copy_gbps for row in rows],
        "without the window, ms": [row.full_ms for row in rows],
        "without a table, ms": [row.heuristic_ms for row in rows],
    }
    more = {name: values for name, values in columns.items() if any(values)}
    lines = [
        [
            point_of(row).label,
            *(f"{by_name[name]:,.0f}" if name in by_name else "" for name in names),
            ratio_cell(row.ratio, row.ok),
            f"{row.ms:.4f}",
            *(f"{values[place]:,.4g}" if values[place] else "" for values in more.values()),
        ]
        for place, (row, by_name) in enumerate(zip(rows, speeds, strict=True))
    ]
    header = ["problem", *(NAMES.get(name, name) for name in names), "times", "ms", *more]
    return table(header, lines, caption=f"{TITLES.get(grid, grid)}, {unit(rows)}")
