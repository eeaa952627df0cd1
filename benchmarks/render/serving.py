# SPDX-License-Identifier: Apache-2.0
"""The calls of a serving engine: what `flash-attention bench --grid serving` measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.render.blocks import table, wrap
from flash_attention_workbench.bench.peers.fa3 import FA3
from flash_attention_workbench.bench.serving_run import (
    OURS,
    PACKED,
    ServingRow,
    serving_record,
)

SERVING_PLOT = Path("serving.png")  # beside the document
NAMES = {PACKED: "ours", FA3: "vLLM's FA3"}


def serving_block(name: str, record: Mapping[str, Any], where: str) -> str:
    """Every step beside vLLM's FA3, and what a call costs on the host."""
    stored = serving_record(record)
    ratios = [row.ratio for row in stored.rows if row.ratio is not None]
    setting = (
        f"{where}. BF16 unless it says 8 bits. Microseconds on the GPU, medians of"
        f" {stored.repeats} interleaved runs with L2 {stored.l2}; the speed is a multiple of"
        " that of vLLM's FA3."
    )
    header = ["call", "layer", *OURS, "vLLM's FA3", "speed", "TB/s of K and V"]
    lines = [*table(header, map(_line, stored.rows), left=2)]
    over = "FA3 was not measured."
    if ratios:
        over = (
            f"Geometric mean of the speeds: **{geometric_mean(ratios):.3f}**, least:"
            f" **{min(ratios):.3f}**."
        )
        told = "How many times as fast as vLLM's FA3 each call is, as bars"
        lines += ["", f"![{told}]({SERVING_PLOT.as_posix()})"]
    costs = "; ".join(
        f"{NAMES.get(name, name)} {of['new']:.0f} with new shapes and {of['known']:.0f} with known"
        " ones"
        for name, of in stored.host_us.items()
    )
    host = f"Microseconds of the host for a decode call: {costs}."
    return wrap(name, (setting, "", *lines, "", over, "", host))


def _line(row: ServingRow) -> list[str]:
    times = [f"{row.us[name]:.1f}" if name in row.us else "" for name in (*OURS, FA3)]
    if not row.ok:
        times[0] = "wrong"
    ratio = "" if row.ratio is None else f"**{row.ratio:.2f}**"
    speed = "" if row.gbps is None else f"{row.gbps / 1e3:.2f}"
    return [row.label, row.layer, *times, ratio, speed]
