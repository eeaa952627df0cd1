# SPDX-License-Identifier: Apache-2.0
"""Recorded steps of an engine: what `python -m benchmarks.recorded.replay` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from benchmarks.recorded.replay import OURS
from benchmarks.render.blocks import table, wrap
from flash_attention_workbench.bench.peers.fa3 import FA3

RECORDED = "recorded"


def recorded_block(record: Mapping[str, Any], where: str) -> str:
    """Every layer beside vLLM's FA3, in steps that decode and in steps with prompts."""
    rows = record["rows"]
    kinds = {
        "every request decodes": [row for row in rows if row["queries"] == row["requests"]],
        "with chunks of prompts": [row for row in rows if row["queries"] > row["requests"]],
    }
    lines = [
        _line(layer, kind, [row for row in some if row["layer"] == layer])
        for layer in dict.fromkeys(row["layer"] for row in rows)
        for kind, some in kinds.items()
    ]
    setting = (
        f"{where}. {record['engine']}, pages of 16. Medians of {record['repeats']} interleaved runs"
        " with L2 cold; a speed is a multiple of that of vLLM's FA3. The difference is the norm"
        " between both outputs, as a fraction of the output's."
    )
    header = ["layer", "steps", "calls", "right", "speed", "least", "below 0.97", "difference"]
    return wrap(RECORDED, (setting, "", *table(header, lines, left=2)))


def _line(layer: str, kind: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    speeds = [row["us"][FA3] / row["us"][OURS] for row in rows]
    return [
        *(layer, kind, str(len(rows)), str(sum(row["right"] for row in rows))),
        *(f"**{geometric_mean(speeds):.2f}**", f"{min(speeds):.2f}"),
        *(str(sum(speed < 0.97 for speed in speeds)), f"{max(r['difference'] for r in rows):.1e}"),
    ]
