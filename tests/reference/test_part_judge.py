# SPDX-License-Identifier: Apache-2.0
"""Judging some of the heads: an error in one of them is seen, poison in all."""

from __future__ import annotations

import math

import pytest
import torch

from flash_attention import testing
from flash_attention.call.dtype import DType
from flash_attention.reference import part_judge
from flash_attention.reference.judge import generate_qkv
from flash_attention.reference.oracle import oracle
from flash_attention.reference.part_judge import PartJudge
from tests.feature_cases import Case
from tests.gate import third_of_features

FEW_SCORES = 3 * 2 * 64 * 64  # of three heads


@pytest.mark.parametrize("causal", [False, True])
def test_an_error_is_seen_in_the_heads_that_are_checked(causal: bool) -> None:
    q, k, v = testing.generate_qkv(2, 64, 8, 32, torch.float16)
    judge = PartJudge(q, k, v, scores=FEW_SCORES, causal=causal)
    assert judge.heads == [0, 4, 7]
    good = testing.oracle(q, k, v, causal=causal).to(q.dtype)
    assert judge.check(good).ok
    for head in range(8):
        out = good.clone()
        out[1, 20, head, 5] += 1
        assert judge.check(out).ok == (head not in judge.heads)
    out[1, 20, 4, 5] += 2
    assert judge.check(out).worst_index == (1, 20, 4, 5)


def test_poison_is_seen_in_every_head() -> None:
    q, k, v = testing.generate_qkv(2, 64, 8, 32, torch.float16)
    judge = PartJudge(q, k, v, scores=FEW_SCORES, causal=False)
    out = testing.oracle(q, k, v).to(q.dtype)
    out[0, 3, 6, 1] = math.nan
    check = judge.check(out)
    assert not check.ok
    assert check.worst_index == (0, 3, 6, 1)


def test_short_problems_are_checked_whole() -> None:
    q, k, v = testing.generate_qkv(1, 64, 5, 32, torch.float16)
    assert PartJudge(q, k, v, causal=False).heads == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("case", third_of_features(2))
@pytest.mark.parametrize("scores", [1, 1 << 30], ids=["some", "all"])
def test_heads_keep_their_keys_and_their_sinks(case: Case, scores: int) -> None:
    made = case.make()
    judge = PartJudge(made.q, made.k, made.v, scores=scores, **made.keywords)
    assert judge.heads == ([0, case.heads - 1] if scores == 1 else list(range(case.heads)))
    out = testing.oracle(made.q, made.k, made.v, **made.keywords).to(made.q.dtype)
    lse = testing.oracle_lse(made.q, made.k, **made.keywords).float()
    assert judge.check(out).ok
    assert judge.check_lse(lse).ok
    lse[..., 1, 0] = math.nan
    assert not judge.check_lse(lse).ok


def test_long_keys_are_widened_in_few_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_judge, "CHECKED_KEYS", 2 * 64 * 32)
    q, k, v = testing.generate_qkv(1, 1, 8, 32, torch.float16, seq_len_k=64)
    assert PartJudge(q, k, v).heads == [0, 7]


def test_a_head_of_packed_entries_has_fewer_scores_than_its_shape_says() -> None:
    q, k, v = (tensor[0] for tensor in testing.generate_qkv(1, 96, 8, 32, torch.float16))
    starts = testing.cu_seqlens((64, 32))
    features: testing.CallFeatures = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    few = PartJudge(q, k, v, scores=8 * 5120, **features)
    assert few.heads == [0, 2, 5, 7]
    assert PartJudge(q, k, v, scores=8 * 5120, cells=5120, **features).heads == list(range(8))


def test_elements_that_nobody_set_are_mismatched_in_every_head() -> None:
    q, k, v = generate_qkv(1, 32, 8, 64, DType.FP16)
    judge = PartJudge(q, k, v, scores=1)
    assert judge.heads == [0, 7]
    out = oracle(q, k, v).half()
    assert (judge.check(out).mismatched, judge.check(out).elements) == (0, 32 * 2 * 64)
    out[0, 0, :3, 0] = math.nan
    out[0, 1, 7, 5] += 1
    check = judge.check(out)
    assert (check.mismatched, check.elements) == (3 + 1, out.numel())
