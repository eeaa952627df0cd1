# SPDX-License-Identifier: Apache-2.0
"""Somebody else's compiler: PTX that Triton made of an attention kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptx_emulator import SCHEDULES, GlobalMemory, load_program, run

PTX = Path(__file__).parent / "triton" / "attention.ptx"
HEADS, SEQ_LEN, D_HEAD, BLOCK_M, SHARED_BYTES = 2, 128, 64, 64, 16384


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_attention_by_triton(schedule: str) -> None:
    rng = np.random.default_rng(3)
    shape = (HEADS, SEQ_LEN, D_HEAD)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for _ in range(3))
    memory = GlobalMemory()
    addresses = [memory.alloc(tensor) for tensor in (q, k, v)]
    out = memory.alloc(nbytes=q.nbytes)
    scale = np.float32(D_HEAD**-0.5 * np.log2(np.e))
    result = run(
        load_program(PTX.read_text()),
        memory,
        grid=(SEQ_LEN // BLOCK_M, HEADS, 1),
        block=128,
        args=[*addresses, out, float(scale), SEQ_LEN, 0, 0],
        dynamic_smem=SHARED_BYTES,
        schedule=schedule,
    )
    scores = np.einsum("hqd,hkd->hqk", *(t.astype(np.float64) for t in (q, k))) * D_HEAD**-0.5
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    exact = np.einsum("hqk,hkd->hqd", weights, v.astype(np.float64))
    exact /= weights.sum(axis=2)[:, :, None]
    error = np.abs(memory.read(out, np.float16, shape).astype(np.float64) - exact).max()
    assert error < 1e-3
    assert result.findings == []
