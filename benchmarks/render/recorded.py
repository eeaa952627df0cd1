# SPDX-License-Identifier: Apache-2.0
"""Recorded steps of engines: what `python -m benchmarks.recorded.replay` measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from benchmarks.recorded.replay import CHECKED, OURS, TOLERANCE
from benchmarks.render.blocks import table, wrap
from flash_attention_workbench.bench.peers.fa3 import FA3

RECORDED = "recorded"
SLOW = 0.97  # a speed that noise does not explain
_Rows = Sequence[Mapping[str, Any]]


def is_recorded(record: Mapping[str, Any]) -> bool:
    return "engine" in record


def recorded_block(
    records: Sequence[Mapping[str, Any]], where: Callable[[Mapping[str, Any]], str]
) -> str:
    """Every layer beside vLLM's FA3, in steps that decode and in steps with prompts."""
    runs = dict[str, list[str]]()
    for record in records:
        run = f"{where(record)}, medians of {record['repeats']} interleaved runs with L2 cold"
        runs.setdefault(run, []).append(f"{record['engine']} with pages of {record['page']}")
    places = " ".join(f"{run}: {', '.join(engines)}." for run, engines in runs.items())
    right = (
        "A speed is a multiple of that of vLLM's FA3 on the same pages. An output is right if it"
        f" differs from FA3's by at most {100 * TOLERANCE[False]:g} % of its norm, or by"
        f" {100 * TOLERANCE[True]:g} % with 8 bits. One of {CHECKED} is also compared with float32."
    )
    header = ["engine", "page", "layer", "steps", "calls", "right", "speed", "least"]
    lines = table([*header, f"below {SLOW}"], [row for r in records for row in _lines(r)], left=4)
    rows = [row for record in records for row in record["rows"]]
    slow = sum(speed < SLOW for speed in _speeds(rows))
    over = (
        f"Outputs that are right: {sum(row['right'] for row in rows)} of {len(rows)}. Calls below"
        f" {SLOW} of FA3's speed: {slow} of {len(rows)}."
    )
    return wrap(RECORDED, (places, "", right, "", *lines, "", over))


def _lines(record: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the table for one engine and size of a page."""
    lines = []
    for layer in dict.fromkeys(row["layer"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["layer"] == layer]
        kinds = {
            "every request decodes": [row for row in rows if row["queries"] == row["requests"]],
            "with chunks of prompts": [row for row in rows if row["queries"] > row["requests"]],
        }
        about = [record["engine"], str(record["page"]), layer]
        lines += [[*about, kind, *_cells(some)] for kind, some in kinds.items() if some]
    return lines


def _cells(rows: _Rows) -> list[str]:
    speeds = _speeds(rows)
    return [
        *(str(len(rows)), str(sum(row["right"] for row in rows))),
        *(f"**{geometric_mean(speeds):.2f}**", f"{min(speeds):.2f}"),
        str(sum(speed < SLOW for speed in speeds)),
    ]


def _speeds(rows: _Rows) -> list[float]:
    return [row["us"][FA3] / row["us"][OURS] for row in rows]
