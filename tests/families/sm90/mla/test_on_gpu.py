# SPDX-License-Identifier: Apache-2.0
"""MLA kernels on a Hopper GPU: numbers, bits that repeat, graphs and KV caches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention import attention, explain
from flash_attention.compat.flash_attn import flash_attn_with_kvcache
from flash_attention.errors import UnsupportedError
from flash_attention.reference.judge import check_output, cu_seqlens
from tests.families.sm90.mla.cases import Case, MadeCase
from tests.families.sm90.mla.random_cases import random_case

pytestmark = pytest.mark.gpu("sm_90")
D_V = 512


def computed(made: MadeCase) -> tuple[torch.Tensor, torch.Tensor]:
    call = made.call
    return attention(call.q, call.k, call.v, **call.keywords(), return_lse=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keys", [1024, 8192, 65536])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_serving_shapes_are_right(batch: int, keys: int, dtype: torch.dtype) -> None:
    if batch * keys > 1 << 18:
        pytest.skip("the reference takes too much memory")
    made = Case(2, keys, heads=128, batch=batch, causal=True).make(D_V, dtype, "cuda")
    made.assert_right(*computed(made))


@pytest.mark.parametrize("batch", [64, 128])
@pytest.mark.parametrize("heads", [16, 128])
def test_large_batches_are_right(batch: int, heads: int) -> None:
    used = tuple((977 * i) % 1025 for i in range(batch))
    made = Case(1, 1024, heads=heads, batch=batch, used=used, page_keys=64)
    case = made.make(D_V, device="cuda")
    case.assert_right(*computed(case))


@pytest.mark.parametrize("tens", range(20))
def test_random_calls_are_right(tens: int) -> None:
    for seed in range(1000 + 10 * tens, 1010 + 10 * tens):
        case = random_case(seed, most_keys=3000, most_batch=9, most_queries=9)
        dtype = torch.float16 if seed % 4 == 0 else torch.bfloat16
        if dtype == torch.float16:
            case = replace(case, large=1.0)
        made = case.make(D_V, dtype, "cuda")
        made.assert_right(*computed(made))


def test_results_have_the_same_bits_in_every_run() -> None:
    made = Case(2, 5000, heads=128, batch=5, causal=True).make(D_V, device="cuda")
    first, first_lse = computed(made)
    for _ in range(50):
        out, lse = computed(made)
        assert torch.equal(out, first)
        assert torch.equal(lse, first_lse)


def test_a_graph_replays_both_kernels() -> None:
    made = Case(1, 5000, heads=128, batch=2).make(D_V, device="cuda")
    call = made.call
    cache = call.k.clone()
    out = torch.empty(*call.q.shape[:-1], D_V, dtype=call.q.dtype, device="cuda")
    attention(call.q, cache, cache[..., :D_V], out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(call.q, cache, cache[..., :D_V], out=out)
    cache.mul_(0.5)
    graph.replay()
    assert torch.equal(out, attention(call.q, cache, cache[..., :D_V]))


def test_a_paged_cache_of_flash_attn_is_read_once() -> None:
    made = Case(1, 1024, heads=128, batch=3, used=(1000, 1, 513), page_keys=64)
    case = made.make(D_V, device="cuda")
    call = case.call
    out = flash_attn_with_kvcache(
        *(call.q, call.k, call.v),
        cache_seqlens=call.seqused_k,
        block_table=call.block_table,
        causal=True,
    )
    assert isinstance(out, torch.Tensor)
    case.assert_right(out, None)


def test_a_dense_cache_of_flash_attn_takes_new_keys() -> None:
    q, cache = (
        torch.randn(2, rows, heads, 576, device="cuda", dtype=torch.bfloat16)
        for rows, heads in ((2, 16), (200, 1))
    )
    new = torch.randn(2, 2, 1, 576, device="cuda", dtype=torch.bfloat16)
    lengths = torch.tensor([100, 7], dtype=torch.int32, device="cuda")
    out = flash_attn_with_kvcache(
        *(q, cache, cache[..., :D_V], new, new[..., :D_V]), cache_seqlens=lengths, causal=True
    )
    for entry, length in enumerate(lengths.tolist()):
        assert torch.equal(cache[entry, length : length + 2], new[entry])
    assert isinstance(out, torch.Tensor)
    check = check_output(out, q, cache, cache[..., :D_V], seqused_k=lengths + 2, causal=True)
    assert check.ok, str(check)


@pytest.mark.parametrize("batch", [4, 64])
def test_packed_queries_of_decoding_and_prefill_are_right(batch: int) -> None:
    queries = (200, *(1 + i % 4 for i in range(batch - 1)))
    used = tuple(200 + (977 * i) % 1849 for i in range(batch))
    case = Case(200, 2048, 128, batch, queries, used=used, page_keys=64, causal=True)
    made = case.make(D_V, device="cuda")
    made.assert_right(*computed(made))


def test_a_graph_follows_packed_queries_that_change() -> None:
    made = Case(4, 3000, 128, 3, (1, 4, 2), causal=True).make(D_V, device="cuda")
    call = made.call
    starts = cu_seqlens((1, 4, 2)).cuda()
    options: Any = {**call.keywords(), "cu_seqlens_q": starts}
    attention(call.q, call.k, call.v, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(call.q, call.k, call.v, **options)
    starts.copy_(cu_seqlens((3, 0, 4)))
    graph.replay()
    assert torch.equal(out, attention(call.q, call.k, call.v, **options))


def test_v_elsewhere_is_refused_in_every_call() -> None:
    made = Case(heads=128).make(D_V, device="cuda")
    call = made.call
    computed(made)
    with pytest.raises(UnsupportedError, match="MLA kernels read v as the first columns of k"):
        attention(call.q, call.k, call.k.clone()[..., :D_V])
    assert "hopper_mla" in str(explain(call.q, call.k, call.v))
