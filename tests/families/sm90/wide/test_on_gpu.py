# SPDX-License-Identifier: Apache-2.0
"""Kernels for wide heads on a Hopper GPU: random problems, bits that repeat, and graphs."""

from __future__ import annotations

import pytest
import torch

from flash_attention import attention
from flash_attention.compat.flash_attn import flash_attn_with_kvcache
from tests.families.sm90.wide.random_problems import wide_problem
from tests.feature_cases import Case
from tests.random_problems.call import make, verdict_of
from tests.random_problems.draw import LARGE

pytestmark = pytest.mark.gpu("sm_90")


@pytest.mark.parametrize("tens", range(20))
def test_random_problems_are_right(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        problem = wide_problem(seed, LARGE)
        assert verdict_of(make(problem, "cuda")).wrong == [], problem


@pytest.mark.parametrize("queries", [1, 2000])
def test_results_have_the_same_bits_in_every_run(queries: int) -> None:
    made = Case("", queries, 2000, 512, 512, heads=8, batch=2, causal=True).make("cuda")
    first = attention(made.q, made.k, made.v, **made.arguments)
    for _ in range(50):
        assert torch.equal(attention(made.q, made.k, made.v, **made.arguments), first)


@pytest.mark.parametrize("queries", [1, 700])
def test_a_graph_replays_a_call(queries: int) -> None:
    made = Case("", queries, 5000, 512, 512).make("cuda")
    q, k, v = made.q, made.k.clone(), made.v
    out = torch.empty_like(q)
    attention(q, k, v, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(q, k, v, out=out)
    k.mul_(0.5)
    graph.replay()
    assert torch.equal(out, attention(q, k, v))


def test_a_cache_of_flash_attn_is_read() -> None:
    made = Case("", 1, 320, 512, 512, batch=2, used=(320, 65), heads=8).make("cuda")
    out = flash_attn_with_kvcache(
        made.q, made.k, made.v, cache_seqlens=made.keywords["seqused_k"], causal=True
    )
    assert isinstance(out, torch.Tensor)
    made.assert_right(out)
