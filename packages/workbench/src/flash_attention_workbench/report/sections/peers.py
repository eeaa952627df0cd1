# SPDX-License-Identifier: Apache-2.0
"""Speed beside the peers: one small chart a head dimension and mask, and a table of multiples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.grid_run import GridRow
from flash_attention_workbench.bench.grid_summary import NAMES, mean_ratio, rivals, speed
from flash_attention_workbench.bench.stored import GRID, Stored, of_kind
from flash_attention_workbench.report import plane
from flash_attention_workbench.report.markup import Cell, Markup, element, table
from flash_attention_workbench.report.section import Section, lead, numbers

ANCHOR, TITLE = "peers", "Beside the peers"
OURS = "ours"
_LABELS = {OURS: OURS, **NAMES}
_HEIGHT, _TOP, _BOTTOM = 190.0, 16.0, 168.0
_SPAN = (9.0, 79.0)  # of the width: the y labels stand left of it, the names right of it

Series = dict[str, dict[int, float]]
"""TFLOP/s by kernel and length."""


@dataclass(frozen=True)
class View:
    """Measured points that a switch shows: what it calls them, their rows, and who the ratios are
    to."""

    label: str
    source: Stored
    rows: Sequence[GridRow]
    beside: str


def peers_section(stored: Sequence[Stored]) -> Section:
    """The newest grid of every dtype that has all head dimensions; a switch goes between them."""
    about = (
        "TFLOP/s by rows of a sequence, forward, medians with a cold L2, contenders taken in "
        "turn; a causal mask halves the count of FLOP."
    )
    grids = largest(of_kind(stored, GRID), Measured.FORWARD)
    views = [
        View(dtype, one, grid_rows(one.record), f"the faster of {rivals()}")
        for dtype, one in sorted(grids.items())
    ]
    if not views:
        missing = "No grid was measured: `flash-attention bench --json FILE` on a GPU does."
        return Section(ANCHOR, TITLE, None, missing)
    return switched(ANCHOR, TITLE, about, views)


def largest(grids: Sequence[Stored], measured: Measured) -> dict[str, Stored]:
    """By dtype, the file with the most points of what was measured; of equals the newest."""
    found: dict[str, Stored] = {}
    for one in grids:
        rows = grid_rows(one.record)
        known = found.get(one.record["dtype"])
        if all(row.measured == measured.name for row in rows) and (
            known is None or len(known.record["rows"]) < len(rows)
        ):
            found[one.record["dtype"]] = one
    return found


def switched(anchor: str, title: str, about: str, views: Sequence[View]) -> Section:
    """A section of views, one of which is shown at a time."""
    body = [lead(about)]
    for place, view in enumerate(views):
        name = f"{anchor}-{view.label.lower().replace(', ', '-').replace(' ', '-')}"
        body.append(element("input", type="radio", name=anchor, id=name, checked=place == 0))
        body.append(element("label", view.label, for_=name))
    body += map(_view, views)
    sources = tuple(dict.fromkeys(view.source.path.name for view in views))
    switch = element("div", *body, class_="switch", role="group", aria_label=title)
    return Section(anchor, title, switch, sources=sources)


def _view(view: View) -> Markup:
    groups: dict[tuple[int, bool], list[GridRow]] = {}
    for row in sorted(view.rows, key=lambda row: (row.causal, row.d, row.seq)):
        groups.setdefault((row.d, row.causal), []).append(row)
    series = {key: found for key, group in groups.items() if (found := speeds(group))}
    top = max(max(by_length.values()) for s in series.values() for by_length in s.values())
    charts = [_chart(d, causal, one, top, view) for (d, causal), one in series.items()]
    parts = (
        element("div", *charts, class_="multiples"),
        _ratios(groups, view),
        numbers(_table(series, view)),
    )
    return element("div", *parts, class_="choice", data_view=view.label)


def speeds(rows: Sequence[GridRow]) -> Series:
    """Ours and every peer at the points of one chart; a wrong kernel has no speed."""
    found: Series = {}
    for row in rows:
        if row.ok:
            found.setdefault(OURS, {})[row.seq] = row.tflops
        for name, ms in row.peers.items():
            found.setdefault(name, {})[row.seq] = speed(row, ms)
    return found


def _chart(d: int, causal: bool, series: Series, top: float, view: View) -> Markup:
    title = f"d {d}, {'causal' if causal else 'no mask'}"
    label = f"{view.label}, head dimension {d}, {'causal' if causal else 'no mask'}: "
    label += "; ".join(
        f"{_LABELS.get(name, name)} {by_length[last]:.0f} TFLOP/s at {last} rows"
        for name, by_length in series.items()
        for last in [max(by_length)]
    )
    picture = plane.svg(_HEIGHT, *_drawing(series, top), label=label)
    return element("figure", element("figcaption", title), picture)


def _drawing(series: Series, top: float) -> list[Markup]:
    lengths = sorted({length for by_length in series.values() for length in by_length})
    ends = (lengths[0], max(lengths[-1], 2 * lengths[0]))
    across = plane.Scale(ends, _SPAN, log=True)
    ticks = plane.nice_ticks(top, 4)
    up = plane.Scale((0, max(top, ticks[-1])), (_BOTTOM, _TOP))
    parts = plane.level_lines(up, ticks, "TFLOP/s", _SPAN[1])
    parts += [
        plane.text(across(length), _HEIGHT - 6, _short(length), "tick", anchor="middle")
        for length in lengths
    ]
    names = sorted(series, key=lambda name: name == OURS)  # ours is drawn over the others
    for name in names:
        points = [(across(n), up(speed)) for n, speed in sorted(series[name].items())]
        parts += plane.polyline(points, f"curve {name}")
        parts += [plane.dot(x, y, 2.6 if name == OURS else 1.8, f"spot {name}") for x, y in points]
    wanted = [up(series[name][max(series[name])]) + 4 for name in names]
    for name, y in zip(names, plane.spread_out(wanted, 13), strict=True):
        at = across(max(series[name]))
        words = f"{_LABELS.get(name, name)} {series[name][max(series[name])]:.0f}"
        parts.append(plane.text(at, y, words, f"peer {name}", dx=7))
    parts += [
        plane.dot(
            across(n), up(s), 9, "touch", f"{_LABELS.get(name, name)}, {n:,} rows: {s:.0f} TFLOP/s"
        )
        for name in names
        for n, s in sorted(series[name].items())
    ]
    return parts


def _short(length: int) -> str:
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def _ratios(groups: Mapping[tuple[int, bool], list[GridRow]], view: View) -> Markup:
    lengths = sorted({row.seq for rows in groups.values() for row in rows})
    lines = []
    for (d, causal), rows in groups.items():
        by_length = {row.seq: row for row in rows}
        found = [by_length.get(length) for length in lengths]
        cells = [ratio_cell(row.ratio, row.ok) if row else ratio_cell(None) for row in found]
        mean = mean_ratio(rows)
        lines.append([f"{d} {'causal' if causal else 'full'}", *cells, _times(mean)])
    caption = (
        f"{view.label}: how many times as fast as {view.beside}. Geometric mean "
        f"{_times(mean_ratio(row for rows in groups.values() for row in rows))}"
    )
    header = ["d, mask", *map(_short, lengths), "mean"]
    return table(header, lines, caption=caption, class_="ratios")


def ratio_cell(ratio: float | None, ok: bool = True) -> Cell:
    """How many times as fast, the deeper coloured the further from a draw."""
    if ratio is None:
        return Cell(element("td", "", class_="number"))
    if not ok:
        return Cell(element("td", "wrong", class_="number"))
    # a quarter faster or slower is the deepest
    depth = min(abs(ratio - 1) / 0.25, 1)
    side = "ahead" if ratio >= 1 else "behind"
    style = f"--depth:{100 * depth:.0f}%"
    return Cell(element("td", f"{ratio:.2f}", class_=f"number {side}", style=style))


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


def _table(series: Mapping[tuple[int, bool], Series], view: View) -> Markup:
    lengths = sorted({n for one in series.values() for by in one.values() for n in by})
    rows = [
        [
            f"{d} {'causal' if causal else 'full'}",
            _LABELS.get(name, name),
            *(f"{by_length[n]:.0f}" if n in by_length else "" for n in lengths),
        ]
        for (d, causal), one in series.items()
        for name, by_length in one.items()
    ]
    caption = f"{view.label}, TFLOP/s by rows"
    return table(["d, mask", "kernel", *map(_short, lengths)], rows, caption=caption, left=2)
