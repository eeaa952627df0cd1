# SPDX-License-Identifier: Apache-2.0
"""The masks that flex_attention is given are the oracle's."""

from __future__ import annotations

import pytest
from torch.nn.attention.flex_attention import flex_attention

from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.bench.peers.flex import block_mask, mask_of


@pytest.mark.parametrize(
    "point",
    [
        Point(32, False, 128, 1, 2),
        Point(32, True, 128, 2, 4, heads_k=2),
        Point(32, True, 128, 1, 2, seq_q=16),
        Point(32, True, 128, 1, 2, window=20),
        Point(32, True, 100, 3, 2, lengths=(100, 60, 32)),
        Point(32, False, 100, 2, 2, lengths=(100, 28)),
    ],
    ids=lambda point: point.label,
)
def test_uncompiled_it_agrees_with_the_oracle(point: Point) -> None:
    case = Case.of(point, DType.FP16)
    q, k, v = (t if t.ndim == 4 else t[None] for t in (case.q, case.k, case.v))
    assert (mask_of(case) is None) == (not point.causal and not point.lengths)
    queries, keys, values = (tensor.transpose(1, 2).float() for tensor in (q, k, v))
    shared = point.kv_heads != point.heads
    out = flex_attention(queries, keys, values, block_mask=block_mask(case), enable_gqa=shared)
    check = case.judge().check(out.transpose(1, 2).reshape(case.q.shape).half())
    assert check.ok, str(check)
