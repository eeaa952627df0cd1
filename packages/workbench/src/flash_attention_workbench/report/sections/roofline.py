# SPDX-License-Identifier: Apache-2.0
"""Speed over arithmetic intensity, below what the device's memory and tensor cores allow."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.grid_run import GridRow
from flash_attention_workbench.bench.grid_summary import has_shapes, point_of, selected_rows
from flash_attention_workbench.bench.stored import CANDIDATES, GRID, PEAKS, Stored, of_kind
from flash_attention_workbench.report import plane
from flash_attention_workbench.report.markup import Markup, element, join, table
from flash_attention_workbench.report.section import Section, lead, numbers

ANCHOR, TITLE = "roofline", "Roofline"
ELEMENT_BYTES = 2
_HEIGHT, _TOP, _BOTTOM = 320.0, 18.0, 280.0
_SPAN = (7.0, 97.0)
_SHADES = ("low", "middle", "high")  # of the head dimensions, smallest first


def roofline_section(stored: Sequence[Stored]) -> Section:
    """The largest grid, and the shapes of models, of the device that the peaks were measured on."""
    peaks = of_kind(stored, PEAKS)
    grids = of_kind(stored, GRID)
    pairs = [(p, g) for p in peaks for g in grids if p.record["device"] == g.record["device"]]
    if not pairs:
        missing = (
            "No roofline: it needs a measured grid and, of the same device, a results file with "
            '{"peak": {"bf16_matmul_tflops": ..., "copy_tb_s": ...}}.'
        )
        return Section(ANCHOR, TITLE, None, missing)
    peak, grid = max(pairs, key=lambda pair: len(pair[1].record["rows"]))
    device = peak.record["device"]
    candidates = of_kind(stored, CANDIDATES)
    here = [one for one in (*grids, *candidates) if one.record["device"] == device]
    shapes = [one for one in here if has_shapes(grid_rows(one.record))]
    files = [grid, *shapes]
    rows = [row for one in files for row in selected_rows(grid_rows(one.record)) if row.ok]
    matmul, copy = (peak.record["peak"][name] for name in ("bf16_matmul_tflops", "copy_tb_s"))
    about = lead(
        f"{grid.record['dtype']} on the {device}, the grid and the shapes of models. A byte counts "
        "once: Q, K and V read, O written. One length without a mask has an intensity of half the "
        "length; decoding has a few FLOP a byte, and memory bounds it. "
        f"The roofs are measured, not promised: a large BF16 matrix product ({matmul:.0f} "
        f"TFLOP/s) and a device copy ({copy:.2f} TB/s). The first is no hard limit: "
        f"{sum(row.tflops > matmul for row in rows)} of {len(rows)} points are above it."
    )
    label = (
        f"Roofline: {len(rows)} points from {min(map(intensity, rows)):.0f} to "
        f"{max(map(intensity, rows)):.0f} FLOP a byte, up to "
        f"{max(row.tflops for row in rows):.0f} TFLOP/s; matrix product {matmul:.0f} TFLOP/s"
    )
    picture = plane.svg(_HEIGHT, *_drawing(rows, matmul, copy), label=label)
    legend = element("p", *_legend(rows), class_="legend")
    body = join((about, element("figure", legend, picture), numbers(_table(rows, matmul))))
    return Section(ANCHOR, TITLE, body, sources=(*(one.path.name for one in files), peak.path.name))


def intensity(row: GridRow) -> float:
    """FLOP for each byte that has to move: Q, K and V read once, O written."""
    point = point_of(row)
    queries, keys = (sum(row.lengths) or row.batch * n for n in (point.queries, row.seq))
    values = 2 * row.d * (queries * row.heads + keys * point.kv_heads)
    return point.flop / (values * ELEMENT_BYTES)


def _drawing(rows: Sequence[GridRow], matmul: float, copy: float) -> list[Markup]:
    ridge = matmul / copy
    low = min(ridge, *map(intensity, rows)) / 2
    high = 1.5 * max(map(intensity, rows))
    across = plane.Scale((low, high), _SPAN, log=True)
    speeds = [row.tflops for row in rows]
    top = 1.2 * max(matmul, *speeds)
    up = plane.Scale((min(copy * low, *speeds), top), (_BOTTOM, _TOP), log=True)
    parts = plane.level_lines(up, plane.log_ticks(*up.domain), "TFLOP/s", _SPAN[1])
    parts += [
        plane.text(across(tick), _BOTTOM + 16, f"{tick:,g}", "tick", anchor="middle")
        for tick in plane.log_ticks(low, high)
    ]
    words = "FLOP a byte (both scales logarithmic)"
    parts.append(plane.text(_SPAN[1], _BOTTOM + 32, words, "tick", anchor="end"))
    parts.append(plane.line(across(low), up(copy * low), across(ridge), up(matmul), "roof"))
    parts.append(plane.line(across(ridge), up(matmul), _SPAN[1], up(matmul), "roof"))
    middle = (low * ridge) ** 0.5
    words = f"copy {copy:.2f} TB/s"
    parts.append(plane.text(across(middle), up(copy * middle) - 8, words, "peer", anchor="end"))
    words = f"matrix product {matmul:.0f}"
    parts.append(plane.text(across(ridge), up(matmul) - 6, words, "peer"))
    dims = sorted({row.d for row in rows})
    for row in rows:
        tip = f"{point_of(row).label}: {row.tflops:.0f} TFLOP/s"
        class_ = f"point {_shade(row.d, dims)}{' hollow' if row.causal else ''}"
        parts.append(plane.dot(across(intensity(row)), up(row.tflops), 4.5, class_, tip))
    return parts


def _legend(rows: Sequence[GridRow]) -> list[object]:
    words: list[object] = []
    dims = sorted({row.d for row in rows})
    for d in dims:
        words += [element("span", class_=f"key {_shade(d, dims)}"), f"d {d} "]
    if any(row.causal for row in rows):
        words += [element("span", class_="key hollow"), "causal"]
    return words


def _shade(d: int, dims: Sequence[int]) -> str:
    return _SHADES[min(dims.index(d), len(_SHADES) - 1)]


def _table(rows: Sequence[GridRow], matmul: float) -> Markup:
    lines = [
        [
            point_of(row).label,
            f"{intensity(row):.0f}",
            f"{row.tflops:.0f}",
            f"{100 * row.tflops / matmul:.0f} %",
        ]
        for row in rows
    ]
    header = ["problem", "FLOP a byte", "TFLOP/s", "of the matrix product"]
    return table(header, lines, caption="The points of the roofline")
