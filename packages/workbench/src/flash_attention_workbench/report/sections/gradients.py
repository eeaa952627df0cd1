# SPDX-License-Identifier: Apache-2.0
"""Gradients beside the peers: the backward pass, its deterministic mode, and both passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.grid_run import GridRow
from flash_attention_workbench.bench.grid_summary import (
    has_shapes,
    rivals,
    selected_rows,
    speed,
)
from flash_attention_workbench.bench.peers.fa3 import FA3
from flash_attention_workbench.bench.peers.gradients import FA3_DETERMINISTIC
from flash_attention_workbench.bench.stored import GRADIENTS, Stored, of_kind
from flash_attention_workbench.report.section import Section
from flash_attention_workbench.report.sections.peers import View, largest, switched

ANCHOR, TITLE = "gradients", "Gradients beside the peers"
WORDS = {Measured.BACKWARD: "", Measured.TRAINING: ", both passes"}


def gradient_views(stored: Sequence[Stored]) -> list[View]:
    """The largest grid of every dtype, with and without determinism; then of both passes."""
    dense = [one for one in of_kind(stored, GRADIENTS) if not has_shapes(grid_rows(one.record))]
    views = []
    for measured, words in WORDS.items():
        for dtype, one in sorted(largest(dense, measured).items()):
            rows = selected_rows(grid_rows(one.record))
            views.append(View(f"{dtype}{words}", one, _ours(rows), f"the faster of {rivals()}"))
            if repeated := [_deterministic(row) for row in rows if row.deterministic_ms]:
                label = f"{dtype}{words}, deterministic"
                views.append(View(label, one, repeated, "FA3 in its deterministic mode"))
    return views


def gradients_section(stored: Sequence[Stored]) -> Section:
    """The backward pass beside the peers; a switch goes between its modes."""
    views = gradient_views(stored)
    if not views:
        missing = (
            "No gradients were measured: `flash-attention bench --grid backward --json FILE` on a"
            " GPU does."
        )
        return Section(ANCHOR, TITLE, None, missing)
    about = (
        "TFLOP/s by rows of a sequence, with all kernels of a pass. A backward pass counts 2.5 "
        "times the FLOP of the forward pass, both passes together 3.5 times. Medians with a cold "
        "L2, contenders taken in turn; FA3 runs in a process of its own, beside ours. Kernels that "
        "are deterministic give the same bits in every run. A cell is empty where no peer has them."
    )
    return switched(ANCHOR, TITLE, about, views)


def _ours(rows: Sequence[GridRow]) -> list[GridRow]:
    """The rows without the peer that is deterministic."""
    return [
        replace(row, peers={n: ms for n, ms in row.peers.items() if n != FA3_DETERMINISTIC})
        for row in rows
    ]


def _deterministic(row: GridRow) -> GridRow:
    """A row of our deterministic mode, whose only peer is FA3's."""
    assert row.deterministic_ms is not None
    there = FA3_DETERMINISTIC in row.peers
    return replace(
        row,
        ms=row.deterministic_ms,
        tflops=speed(row, row.deterministic_ms),
        peers={FA3: row.peers[FA3_DETERMINISTIC]} if there else {},
        ratio=row.multiple(FA3_DETERMINISTIC) if there else None,
    )
