# SPDX-License-Identifier: Apache-2.0
"""Kernels for wide heads on a Hopper GPU: numbers, bits that repeat, and graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention import attention
from flash_attention.compat.flash_attn import flash_attn_with_kvcache
from flash_attention.errors import UnsupportedError
from flash_attention.families.sm90.wide.config import HopperWideKernelConfig
from flash_attention.launch.plan import Plan
from tests.decode_cases import DECODE_CASES, DecodeCase
from tests.families.sm90.wide.cases import CASES, NARROW, WIDE_CASES, holding, sharp, stream_k
from tests.families.sm90.wide.random_problems import wide_problem
from tests.feature_cases import Case
from tests.random_problems.call import make, verdict_of
from tests.random_problems.draw import LARGE

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _on_hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("kernels for wide heads run on sm_90 alone")


def assert_right(case: Case, config: HopperWideKernelConfig | None = None, **more: Any) -> None:
    made = case.make("cuda", **more)
    result = attention(made.q, made.k, made.v, config=config, return_lse=True, **made.arguments)
    made.assert_right(*result)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_gpu_computes_what_the_emulator_does(case: Case) -> None:
    assert_right(case, holding(case))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", WIDE_CASES, ids=lambda case: case.name)
def test_heads_up_to_512_are_right(case: Case, dtype: torch.dtype) -> None:
    assert_right(case, dtype=dtype)


@pytest.mark.parametrize("short", DECODE_CASES, ids=lambda short: short.name)
def test_keys_in_splits_are_right(short: DecodeCase) -> None:
    made = short.make("cuda")
    call = short.call(made)._replace(return_lse=True)
    result = Plan(call, holding(short.case)).run(call)
    assert isinstance(result, tuple)
    made.assert_right(*result)


@pytest.mark.parametrize("ctas", [1, 3, 50, 132])
def test_stream_k_splits_are_right(ctas: int) -> None:
    made = sharp(Case("", 3, 3000, batch=2, heads=8, heads_k=2, causal=True).make("cuda"))
    call = made.call(return_lse=True)
    result = stream_k(call, NARROW, ctas).run(call)
    assert isinstance(result, tuple)
    made.assert_right(*result)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("d", "d_v"), [(512, 512), (320, 320), (512, 256), (384, 512)])
@pytest.mark.parametrize("seq", [1000, 4096])
def test_long_sequences_are_right(seq: int, d: int, d_v: int, causal: bool) -> None:
    assert_right(Case("", seq, seq, d, d_v, heads=4, heads_k=2, batch=2, causal=causal))


@pytest.mark.parametrize("keys", [1024, 8192, 65536])
@pytest.mark.parametrize("queries", [1, 4])
def test_decoding_is_right(queries: int, keys: int) -> None:
    assert_right(Case("", queries, keys, 512, 512, heads=16, heads_k=4, batch=2, causal=True))


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


def test_gradients_are_refused_before_anything_runs() -> None:
    q = torch.zeros(1, 64, 2, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(UnsupportedError, match="kernels compute gradients of d_head up to 256"):
        attention(q, q, q)
