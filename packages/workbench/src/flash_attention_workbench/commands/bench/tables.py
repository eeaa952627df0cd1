# SPDX-License-Identifier: Apache-2.0
"""What `flash-attention bench` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from flash_attention_workbench.bench.agreement import Agreement, Pair
from flash_attention_workbench.bench.grid_run import GridRow
from flash_attention_workbench.bench.grid_summary import NAMES, point_of, remark, speed, unit
from flash_attention_workbench.commands.console import add_number_columns, report_table

AGREE = 0.02  # how far apart two measurements of the same thing may be in the geometric mean


def speeds(rows: Sequence[GridRow], peers: Iterable[str], legend: dict[str, int]) -> Table:
    """A line a kernel and point; beside a peer's speed, how many times as fast ours is."""
    table = report_table("problem", title=f"{unit(rows)} (ours as a multiple)" if rows else "")
    names = [name for name in peers if any(name in row.peers for row in rows)]
    add_number_columns(table, ("config", "ours", "spread", *(NAMES[name] for name in names)))
    remarks = [remark(row) for row in rows]
    if any(remarks):
        table.add_column("")
    for row, said in zip(rows, remarks, strict=True):
        ours = f"{speed(row, row.ms):.0f}" if row.ok else "[bold red]WRONG[/]"
        number = legend.setdefault(row.config, len(legend) + 1)
        cells = [_peer(row, name) for name in names] + ([said] if any(remarks) else [])
        mark = f"{number}" if row.selected else f"({number})"
        table.add_row(point_of(row).label, mark, ours, f"{100 * row.spread:.1f}%", *cells)
    return table


def _peer(row: GridRow, name: str) -> str:
    if name not in row.peers:
        return "-"
    return f"{speed(row, row.peers[name]):.0f} ({row.multiple(name):.2f})"


def point_by_point(pairs: Sequence[Pair]) -> Table:
    """Both times of every contender at every point, and how many times as fast the second is."""
    table = report_table("problem")
    table.add_column("contender", overflow="fold")
    add_number_columns(table, ("first, ms", "second, ms", "ratio"))
    for pair in pairs:
        times = f"{pair.before_ms:.4f}", f"{pair.after_ms:.4f}"
        table.add_row(pair.point.label, pair.contender, *times, f"{pair.ratio:.3f}")
    return table


def means(found: Sequence[Agreement]) -> Table:
    """Geometric mean and spread of the ratios of every contender."""
    table = report_table("contender", title="Speed of the second as a multiple of the first")
    add_number_columns(table, ("points", "geometric mean", "least", "greatest"))
    table.add_column("")
    for one in found:
        apart = abs(one.mean - 1)
        verdict = f"{'agree' if apart <= AGREE else 'apart'}: {100 * apart:.1f}%"
        spread = (f"{one.least:.3f}", f"{one.greatest:.3f}")
        table.add_row(one.contender, str(one.points), f"{one.mean:.3f}", *spread, verdict)
    return table
