# SPDX-License-Identifier: Apache-2.0
"""8-bit tensors and latent attention: what benchmarks/fp8.py and benchmarks/mla.py measured."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log
from statistics import mean
from typing import Any

from benchmarks.render.blocks import table, wrap

FP8, MLA = "fp8", "mla"
OWN, PEER, TRANSPOSED = "own", "fa3", "transposed"


def fp8_block(record: Mapping[str, Any], where: str) -> str:
    """The speed and the error of 8-bit attention, with V as it is and V given transposed."""
    lines = [
        [
            f"{row['d']}, {'causal' if row['causal'] else 'full'}",
            f"{row['seq']:,}",
            f"{row['tflops'][OWN]:.0f}",
            f"{row['tflops'][TRANSPOSED]:.0f}",
            f"{row['relative_rms'][OWN]:.3f}",
        ]
        for row in record["rows"]
    ]
    setting = f"{where}. TFLOP/s with V's transposition, and with V given transposed."
    header = ["d, mask", "rows", "V as it is", "V transposed", "relative RMS error"]
    return wrap(FP8, (setting, "", *table(header, lines, left=1)))


def mla_block(record: Mapping[str, Any], where: str) -> str:
    """The time of MLA decoding beside FlashAttention-3."""
    faster = [row["ms"][PEER] / row["ms"][OWN] for row in record["rows"]]
    lines = [
        [
            f"{row['b']} x {row['kv']:,}",
            *(f"{1e3 * row['ms'][name]:.1f}" for name in (OWN, PEER)),
            f"{ratio:.2f}",
            f"{row['tb_s'][OWN]:.2f}",
        ]
        for row, ratio in zip(record["rows"], faster, strict=True)
    ]
    setting = f"{where}. One query of 128 heads a sequence, pages of 64 keys, bfloat16."
    header = ["batch x keys", "us", "FA3, us", "times as fast", "TB/s of k"]
    over = f"Geometric mean: **{exp(mean(map(log, faster))):.3f}**."
    return wrap(MLA, (setting, "", *table(header, lines, left=1), "", over))
