# SPDX-License-Identifier: Apache-2.0
"""What options of a call cost: what benchmarks/options.py measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.options import BACKWARD, DROPOUT, FA2, FORWARD, LARGEST, PLAIN
from benchmarks.render.blocks import table, wrap

OPTIONS = "options"


def options_block(record: Mapping[str, Any], where: str) -> str:
    """The time of a call with an option, as a multiple of the time without, and beside FA2's."""
    lines = []
    for row in record["rows"]:
        forward, backward = (row["options_ms"][pass_] for pass_ in (FORWARD, BACKWARD))
        ratios = [
            *(times[DROPOUT] / times[PLAIN] for times in (forward, backward)),
            *(times[FA2] / times[DROPOUT] for times in (forward, backward)),
            forward[LARGEST] / forward[PLAIN],
        ]
        shape = f"{row['batch']} x {row['seq']:,}"
        mask = "causal" if row["causal"] else "full"
        lines.append([f"{row['d']}, {mask}", shape, *(f"{ratio:.2f}" for ratio in ratios)])
    setting = (
        f"{where}. BF16, {row['d'] * row['heads']:,} columns of heads. Times of calls with an"
        " option, as multiples of the time without. FA2 is torch's SDPA with its FlashAttention-2"
        " backend, and also drops weights."
    )
    header = [
        *("d, mask", "batch x rows", "dropout, forward", "dropout, backward"),
        *("times as fast as FA2, forward", "backward", "largest scores, forward"),
    ]
    return wrap(OPTIONS, (setting, "", *table(header, lines, left=2)))
