# SPDX-License-Identifier: Apache-2.0
"""A measured grid as a table for documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.render.blocks import table
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.bench.grid_run import GridRow
from flash_attention_workbench.bench.grid_summary import (
    NAMES,
    point_of,
    remark,
    selected_rows,
    speed,
)
from flash_attention_workbench.bench.peers import PEERS
from flash_attention_workbench.bench.peers.gradients import FA3_DETERMINISTIC


def point_table(rows: Sequence[GridRow]) -> list[str]:
    """One line a point: the selected kernel, the peers and ours as a multiple of each."""
    chosen = selected_rows(rows)
    named = (*PEERS, FA3_DETERMINISTIC)
    names = [name for name in named if any(name in row.peers for row in chosen)]
    lines = []
    for row in chosen:
        ours = f"{speed(row, row.ms):.0f}" if row.ok else "wrong"
        theirs = [_beside(row, name) for name in names]
        lines.append([point_of(row).label, ours, *theirs, remark(row)])
    return table(["problem", "ours", *(NAMES[name] for name in names), ""], lines, left=1)


def _beside(row: GridRow, name: str) -> str:
    if name not in row.peers:
        return ""
    return f"{speed(row, row.peers[name]):.0f} (**{row.multiple(name):.2f}**)"


def is_plain(rows: Iterable[GridRow]) -> bool:
    """Whether the points are told apart by head dimension, mask and length."""
    return not any(row.heads_k or row.seq_q or row.window or row.lengths for row in rows)


def grid_table(rows: Sequence[GridRow]) -> list[str]:
    """TFLOP/s of the selected kernels and the peers, one line a head dimension, mask and kernel."""
    chosen = {point_of(row): row for row in selected_rows(rows)}
    lengths = sorted({point.seq_len for point in chosen})
    lines = []
    for d, causal in dict.fromkeys((point.d_head, point.causal) for point in chosen):
        here = {
            p.seq_len: (p, row) for p, row in chosen.items() if (p.d_head, p.causal) == (d, causal)
        }
        label = [str(d), "causal" if causal else "full"]
        lines.append([*label, "ours", *(_ours(here.get(n)) for n in lengths)])
        if any(row.deterministic_ms is not None for _, row in here.values()):
            cells = [_deterministic(here.get(n)) for n in lengths]
            lines.append([*label, "ours, deterministic", *cells])
        for name in (*PEERS, FA3_DETERMINISTIC):
            if any(name in row.peers for _, row in here.values()):
                cells = [_theirs(here.get(n), name) for n in lengths]
                lines.append([*label, NAMES[name], *cells])
    return table(["d_head", "mask", "kernel", *map(str, lengths)], lines, left=3)


def _ours(found: tuple[Point, GridRow] | None) -> str:
    if found is None:
        return ""
    _, row = found
    if not row.ok:
        return "wrong"
    ratio = "" if row.ratio is None else f" (**{row.ratio:.2f}**)"
    return f"{row.tflops:.0f}{ratio}"


def _theirs(found: tuple[Point, GridRow] | None, name: str) -> str:
    if found is None or name not in found[1].peers:
        return ""
    _, row = found
    return f"{speed(row, row.peers[name]):.0f}"


def _deterministic(found: tuple[Point, GridRow] | None) -> str:
    if found is None or (ms := found[1].deterministic_ms) is None:
        return ""
    _, row = found
    beside = FA3_DETERMINISTIC in row.peers
    ratio = f" (**{row.multiple(FA3_DETERMINISTIC):.2f}**)" if beside else ""
    return f"{speed(row, ms):.0f}{ratio}"
