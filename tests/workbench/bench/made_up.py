# SPDX-License-Identifier: Apache-2.0
"""A results file of round numbers, to render and compare."""

from __future__ import annotations

from flash_attention_workbench.bench.comparison import FA2
from flash_attention_workbench.bench.results import Results, Row

SHAPES = ((2, 512), (1, 1024))


def row(name: str, number: int | None, shape: tuple[int, int], tflops: float) -> Row:
    return Row(
        contender=name,
        number=number,
        change="" if number in (None, 1) else "swizzled: False -> True",
        config=None if number is None else "(FP16, 128, 64, 64, 4): load_0_0_0_tiles",
        batch=shape[0],
        seq_len=shape[1],
        median_ms=1.0,
        low_ms=0.9,
        high_ms=1.2,
        samples=5,
        tflops=tflops,
        max_error=1e-4,
        allowed_error=1e-3,
    )


def made_up_results() -> Results:
    speeds = {FA2: (100.0, 300.0), "base": (50.0, 75.0), "swizzle": (110.0, 330.0)}
    numbers = {FA2: None, "base": 1, "swizzle": 2}
    return Results(
        device="Some GPU",
        driver="580.1 (CUDA 13.0)",
        nvrtc="13.0",
        torch="2.13.0",
        python="3.11.7",
        commit="0123456789ab",
        date="2026-01-31",
        command="flash-attention ladder run --json r.json",
        dtype="FP16",
        d_head=128,
        n_heads=16,
        rows=tuple(
            row(name, numbers[name], shape, speed)
            for i, shape in enumerate(SHAPES)
            for name, speed in ((name, values[i]) for name, values in speeds.items())
        ),
    )
