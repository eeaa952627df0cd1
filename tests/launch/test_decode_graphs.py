# SPDX-License-Identifier: Apache-2.0
"""Decoding in CUDA graphs: a replay follows lengths and pages that changed."""

from __future__ import annotations

import pytest
import torch

from flash_attention import attention
from tests.decode_cases import in_pages, shuffled_table
from tests.feature_cases import Case


@pytest.mark.gpu("sm_90")
def test_a_captured_call_follows_lengths_and_pages_that_change() -> None:
    call = Case("", 1, 8192, 128, 128, 8, 2, 2, (8000, 3000), causal=True).make("cuda")
    changed = Case("", 1, 8192, 128, 128, 8, 2, 2, (100, 8192), causal=True).make("cuda", seed=1)
    table = shuffled_table(2, 128, "cuda")
    k, v = (in_pages(t, table, 64) for t in (call.k, call.v))
    other = table.flip(0).contiguous()
    arguments = call.arguments | {"block_table": table.clone()}
    out = torch.empty_like(call.q)
    attention(call.q, k, v, out=out, **arguments)
    call.assert_right(out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(call.q, k, v, out=out, **arguments)
    call.q.copy_(changed.q)
    k.copy_(in_pages(changed.k, other, 64))
    v.copy_(in_pages(changed.v, other, 64))
    arguments["block_table"].copy_(other)
    arguments["seqused_k"].copy_(changed.keywords["seqused_k"])
    graph.replay()
    changed.assert_right(out)
