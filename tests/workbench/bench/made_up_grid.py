# SPDX-License-Identifier: Apache-2.0
"""A measured grid of round numbers: 2 points of d 64, 1 causal one of d 128."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flash_attention_workbench.bench.grid_run import GridRow

SHORT, LONG = "hopper(BF16, 64, 2, 128, 2): tma", "hopper(BF16, 64, 2, 128, 2): plain"
CAUSAL = "hopper(BF16, 128, 2, 128, 2): tma"


def grid_row(
    config: str,
    point: tuple[int, bool, int],
    ms: float,
    peers: dict[str, float],
    *,
    selected: bool = True,
    ok: bool = True,
) -> GridRow:
    d, causal, seq = point
    batch, heads = 16384 // seq, 2048 // d
    flop = 4 * batch * heads * seq * seq * d // (2 if causal else 1)
    rivals = [peers[name] for name in ("fa3", "cudnn") if name in peers]
    return GridRow(
        d=d,
        causal=causal,
        seq=seq,
        batch=batch,
        heads=heads,
        config=config,
        selected=selected,
        ms=ms,
        tflops=flop / ms / 1e9,
        spread=0.01,
        error_ratio=0.5,
        ok=ok,
        peers=peers,
        ratio=min(rivals) / ms if rivals else None,
    )


def made_up_rows() -> list[GridRow]:
    """FLOP of the points: 2^36, 2^37, and 2^37 (causal); milliseconds are powers of two of them."""
    flop = 2**36 / 1e9  # milliseconds at 1 TFLOP/s
    first = {"fa3": flop / 400, "cudnn": flop / 200, "fa2": flop / 100}
    return [
        grid_row(SHORT, (64, False, 512), flop / 800, first),
        grid_row(LONG, (64, False, 512), flop / 1600, first, selected=False),
        grid_row(SHORT, (64, False, 1024), 2 * flop / 500, {"cudnn": 2 * flop / 1000}),
        grid_row(CAUSAL, (128, True, 2048), 2 * flop / 300, {"fa2": 2 * flop / 150}),
    ]


def made_up_grid() -> dict[str, Any]:
    return {
        "device": "Some GPU",
        "driver": "580.1 (CUDA 13.0)",
        "nvrtc": "13.0",
        "torch": "2.13.0",
        "python": "3.11.7",
        "commit": "0123456789ab",
        "date": "2026-01-31",
        "command": "flash-attention bench --json r.json",
        "grid": "fa3",
        "dtype": "BF16",
        "repeats": 25,
        "rows": [asdict(row) for row in made_up_rows()],
        "refused": [],
    }
