# SPDX-License-Identifier: Apache-2.0
"""FP8 kernels on a Hopper GPU: numbers, and the drift of 8-bit accumulators."""

from __future__ import annotations

import pytest
import torch

from flash_attention import attention
from flash_attention.reference.judge import check_lse
from tests.families.sm90.fp8.cases import Case, assert_right, relative_rms

pytestmark = pytest.mark.gpu("sm_90")
MOST_DRIFT = 1e-2  # relative error of the output if the columns of V have a mean of one


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq", [128, 1000, 1024, 4096, 8192])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_chosen_kernels_are_right(d: int, seq: int, causal: bool) -> None:
    case = Case(seq, seq, heads=4, heads_k=2, batch=2, keywords=(("causal", causal),))
    call = case.call(d, "cuda")
    out, lse = attention(*call[:3], **call.keywords(), return_lse=True)
    assert_right(call, out, lse)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_the_output_does_not_drift(d: int, causal: bool) -> None:
    call = Case(8192, 8192, heads=1, mean=1.0, keywords=(("causal", causal),)).call(d, "cuda")
    out = attention(*call[:3], **call.keywords())
    assert relative_rms(call, out) <= MOST_DRIFT


@pytest.mark.parametrize("scale", [1e3, 1e9, 1e-9])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_scores_of_any_magnitude_are_right(d: int, scale: float) -> None:
    """Accumulators of 8-bit products have about 14 bits. A sum of 40 may be off by 0.01, and its
    score by 1 if it is scaled by 100, so that weights are right only if sums need fewer bits."""
    case = Case(300, 1300, scale=scale, keywords=(("causal", True),), whole=True)
    call = case.call(d, "cuda")
    out, lse = attention(*call[:3], **call.keywords(), return_lse=True)
    assert_right(call, out, lse)


@pytest.mark.parametrize("scale", [1e3, 1e9])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_large_scores_that_are_rounded_weigh_values_of_the_row(d: int, scale: float) -> None:
    """Which of two nearly equal scores is larger may differ. The lse may be off by 2^-11 of it, and
    an output lies between the values that it is a mean of."""
    call = Case(300, 1300, scale=scale, keywords=(("causal", True),)).call(d, "cuda")
    out, lse = attention(*call[:3], **call.keywords(), return_lse=True)
    check = check_lse(lse, call.q, call.k, **call.keywords())
    assert check.ok, check
    assert call.v_descale is not None
    values = call.v.float() * call.v_descale.flatten()[0]
    rounding = 1 + 2.0**-4  # of weights of 8 bits
    assert bool((out <= values.amax(1, keepdim=True) * rounding).all())
    assert bool((out >= values.amin(1, keepdim=True) * rounding).all())


def test_results_have_the_same_bits_in_every_run() -> None:
    call = Case(2000, 3000, heads=8, heads_k=2, keywords=(("causal", True),)).call(128, "cuda")
    first = attention(*call[:3], **call.keywords())
    for _ in range(20):
        assert torch.equal(attention(*call[:3], **call.keywords()), first)


def test_a_graph_replays_both_kernels() -> None:
    call = Case(500, 500, keywords=(("causal", True),)).call(128, "cuda")
    call = call._replace(v=call.v.clone())  # others use the tensors of the case, too
    out = torch.empty(call.q.shape, dtype=torch.bfloat16, device="cuda")
    wanted = attention(*call[:3], out=out, **call.keywords()).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(*call[:3], out=out, **call.keywords())
    other = Case(500, 500, mean=1.0, keywords=(("causal", True),)).call(128, "cuda")
    graph.replay()
    assert torch.equal(out, wanted)
    call.v.copy_(other.v)
    graph.replay()
    assert torch.equal(out, attention(*call[:3], **call.keywords()))
