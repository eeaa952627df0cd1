# SPDX-License-Identifier: Apache-2.0
"""Errors are seen in the heads that are checked, poison in all of them."""

from __future__ import annotations

import math

import pytest
import torch

from flash_attention import testing
from flash_attention.bench import part_judge
from flash_attention.bench.part_judge import PartJudge


@pytest.fixture
def few_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_judge, "CHECKED_SCORES", 3 * 2 * 64 * 64)


@pytest.mark.usefixtures("few_heads")
@pytest.mark.parametrize("causal", [False, True])
def test_an_error_is_seen_in_the_heads_that_are_checked(causal: bool) -> None:
    q, k, v = testing.generate_qkv(2, 64, 8, 32, torch.float16)
    judge = PartJudge(q, k, v, cells=2 * 64 * 64, causal=causal)
    assert judge.heads == [0, 4, 7]
    good = testing.oracle(q, k, v, causal=causal).to(q.dtype)
    assert judge.check(good).ok
    for head in range(8):
        out = good.clone()
        out[1, 20, head, 5] += 1
        assert judge.check(out).ok == (head not in judge.heads)
    out[1, 20, 4, 5] += 1
    assert judge.check(out).worst_index == (1, 20, 4, 5)


@pytest.mark.usefixtures("few_heads")
def test_poison_is_seen_in_every_head() -> None:
    q, k, v = testing.generate_qkv(2, 64, 8, 32, torch.float16)
    judge = PartJudge(q, k, v, cells=2 * 64 * 64, causal=False)
    out = testing.oracle(q, k, v).to(q.dtype)
    out[0, 3, 6, 1] = math.nan
    check = judge.check(out)
    assert not check.ok
    assert check.worst_index == (0, 3, 6, 1)


def test_short_problems_are_checked_whole() -> None:
    q, k, v = testing.generate_qkv(1, 64, 5, 32, torch.float16)
    assert PartJudge(q, k, v, cells=64 * 64, causal=False).heads == [0, 1, 2, 3, 4]


def test_a_checked_head_is_judged_with_the_keys_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_judge, "CHECKED_SCORES", 3 * 64 * 64)
    q, k, v = testing.generate_qkv(1, 64, 8, 32, torch.float16, n_heads_k=2)
    judge = PartJudge(q, k, v, cells=64 * 64, causal=True, window=(15, 0))
    good = testing.oracle(q, k, v, causal=True, window=(15, 0)).to(q.dtype)
    assert judge.heads == [0, 4, 7]
    assert judge.check(good).ok
    assert not judge.check(good.roll(1, dims=2)).ok


def test_packed_outputs_are_judged() -> None:
    q, k, v = (tensor[0] for tensor in testing.generate_qkv(1, 96, 3, 32, torch.float16))
    starts = testing.cu_seqlens((64, 32))
    features: testing.CallFeatures = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    judge = PartJudge(q, k, v, cells=64 * 64 + 32 * 32, causal=False, **features)
    out = testing.oracle(q, k, v, **features).to(q.dtype)
    assert judge.check(out).ok
    out[70, 2, 1] += 1
    assert judge.check(out).worst_index == (70, 2, 1)


def test_long_keys_are_widened_in_few_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_judge, "CHECKED_KEYS", 2 * 64 * 32)
    q, k, v = testing.generate_qkv(1, 1, 8, 32, torch.float16, seq_len_k=64)
    assert PartJudge(q, k, v, cells=64, causal=False).heads == [0, 7]
