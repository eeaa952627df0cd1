# SPDX-License-Identifier: Apache-2.0
"""Speed over arithmetic intensity, below what the device's memory and tensor cores allow."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention.tools.bench.grid_record import grid_rows
from flash_attention.tools.bench.grid_run import GridRow
from flash_attention.tools.bench.grid_summary import point_of
from flash_attention.tools.bench.stored import GRID, PEAKS, Stored, of_kind
from flash_attention.tools.report import plane
from flash_attention.tools.report.markup import Markup, element, join, table
from flash_attention.tools.report.section import Section, lead, numbers

ANCHOR, TITLE = "roofline", "Roofline"
ELEMENT_BYTES, TENSORS = 2, 4  # 16-bit values; Q, K, V and O
_HEIGHT, _TOP, _BOTTOM = 320.0, 18.0, 280.0
_SPAN = (7.0, 97.0)
_PIECES = 48  # straight pieces of the memory roof, which is a curve over a logarithmic axis
_SHADES = ("low", "middle", "high")  # of the head dimensions, smallest first


def roofline_section(stored: Sequence[Stored]) -> Section:
    """All points of the grid that the peaks were measured on the same device as."""
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
    rows = [row for row in grid_rows(grid.record) if row.ok]
    matmul, copy = (peak.record["peak"][name] for name in ("bf16_matmul_tflops", "copy_tb_s"))
    about = lead(
        f"{grid.record['dtype']} on the {grid.record['device']}. A byte counts once: Q, K and V "
        "read, O written, so the intensity is half the length, a quarter under a causal mask. "
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
    return Section(ANCHOR, TITLE, body, sources=(grid.path.name, peak.path.name))


def intensity(row: GridRow) -> float:
    """FLOP for each byte that has to move."""
    values = TENSORS * row.batch * row.seq * row.heads * row.d
    return point_of(row).flop / (values * ELEMENT_BYTES)


def _drawing(rows: Sequence[GridRow], matmul: float, copy: float) -> list[Markup]:
    ridge = matmul / copy
    low = min(ridge, *map(intensity, rows)) / 3
    high = 1.5 * max(map(intensity, rows))
    across = plane.Scale((low, high), _SPAN, log=True)
    top = 1.04 * max(matmul, *(row.tflops for row in rows))
    up = plane.Scale((0, top), (_BOTTOM, _TOP))
    parts = plane.level_lines(up, plane.nice_ticks(top), "TFLOP/s", _SPAN[1])
    tick = 1
    while tick <= high:
        if tick >= low:
            parts.append(plane.text(across(tick), _BOTTOM + 16, tick, "tick", anchor="middle"))
        tick *= 2
    parts.append(
        plane.text(_SPAN[1], _BOTTOM + 32, "FLOP a byte (log scale)", "tick", anchor="end")
    )
    steps = [low * (ridge / low) ** (place / _PIECES) for place in range(_PIECES + 1)]
    parts += plane.polyline([(across(x), up(copy * x)) for x in steps], "roof")
    parts.append(plane.line(across(ridge), up(matmul), _SPAN[1], up(matmul), "roof"))
    words = f"copy {copy:.2f} TB/s"
    parts.append(plane.text(across(low), up(copy * low) + 15, words, "peer"))
    words = f"matrix product {matmul:.0f}"
    parts.append(plane.text(across(ridge), up(matmul) - 6, words, "peer"))
    dims = sorted({row.d for row in rows})
    for row in rows:
        tip = f"d {row.d}, {_mask(row)}, {row.seq:,} rows: {row.tflops:.0f} TFLOP/s"
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


def _mask(row: GridRow) -> str:
    return "causal" if row.causal else "full"


def _table(rows: Sequence[GridRow], matmul: float) -> Markup:
    lines = [
        [
            f"{row.d} {_mask(row)} {row.seq}",
            f"{intensity(row):.0f}",
            f"{row.tflops:.0f}",
            f"{100 * row.tflops / matmul:.0f} %",
        ]
        for row in rows
    ]
    header = ["d, mask, rows", "FLOP a byte", "TFLOP/s", "of the matrix product"]
    return table(header, lines, caption="The points of the roofline")
