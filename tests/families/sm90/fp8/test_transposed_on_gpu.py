# SPDX-License-Identifier: Apache-2.0
"""FP8 kernels with a v whose keys are contiguous, on a Hopper GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention import attention
from flash_attention.launch.plans import plan_for
from tests.families.sm90.fp8.cases import assert_right, relative_rms
from tests.families.sm90.fp8.test_on_gpu import MOST_DRIFT
from tests.families.sm90.fp8.transposed_cases import CAUSAL, case, used

pytestmark = pytest.mark.gpu("sm_90")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq", [128, 1000, 1024, 4095, 8192])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_chosen_kernels_are_right(d: int, seq: int, causal: bool) -> None:
    of_case = case(seq, seq, heads=4, heads_k=2, batch=2, keywords=(("causal", causal),))
    call = of_case.call(d, "cuda")
    assert len(plan_for(call).recipe.steps) == 1
    out, lse = attention(*call[:3], **call.keywords(), return_lse=True)
    assert_right(call, out, lse)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq", [128, 1000, 4095])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_chosen_kernels_stop_at_the_last_key(d: int, seq: int, causal: bool) -> None:
    keywords = (*used(seq, 0, 1, seq // 2, seq - 17), ("causal", causal))
    call = case(seq, seq, heads=4, heads_k=2, batch=5, keywords=keywords).call(d, "cuda")
    assert len(plan_for(call).recipe.steps) == 1
    out, lse = attention(*call[:3], **call.keywords(), return_lse=True)
    assert_right(call, out, lse)


def test_a_graph_follows_lengths_that_change() -> None:
    call = case(300, 1000, batch=2, keywords=used(1000, 1000)).call(128, "cuda")
    lengths = torch.tensor([1000, 400], dtype=torch.int32, device="cuda")
    options: Any = {**call.keywords(), "seqused_k": lengths}
    attention(*call[:3], **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(*call[:3], **options)
    lengths.copy_(torch.tensor([77, 999]))
    graph.replay()
    assert torch.equal(out, attention(*call[:3], **options))


@pytest.mark.parametrize("d", [64, 128, 256])
def test_the_output_does_not_drift(d: int) -> None:
    call = case(8192, 8192, heads=1, mean=1.0).call(d, "cuda")
    assert relative_rms(call, attention(*call[:3], **call.keywords())) <= MOST_DRIFT


def test_results_have_the_same_bits_in_every_run() -> None:
    call = case(2000, 3001, heads=8, heads_k=2, keywords=CAUSAL).call(128, "cuda")
    first = attention(*call[:3], **call.keywords())
    for _ in range(20):
        assert torch.equal(attention(*call[:3], **call.keywords()), first)


def test_a_call_follows_the_kernel_that_writes_v() -> None:
    """The kernel reads v from its first instruction on, and nothing transposes it before."""
    call = case(500, 500, heads=8, heads_k=8, keywords=CAUSAL).call(128, "cuda")
    wanted = attention(*call[:3], **call.keywords())
    for _ in range(20):
        late = torch.empty_strided(
            call.v.shape, call.v.stride(), dtype=call.v.dtype, device="cuda"
        ).copy_(call.v)
        assert torch.equal(attention(call.q, call.k, late, **call.keywords()), wanted)
