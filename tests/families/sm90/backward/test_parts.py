# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.families.sm90.backward.parts import MIB, Part, split_work

PROBLEM = Problem(
    batch=2,
    seq_q=1000,
    seq_k=500,
    heads=6,
    heads_k=3,
    d_head=64,
    d_v=64,
    dtype=torch.bfloat16,
    softmax_scale=0.125,
)
OF_A_HEAD = 2 * 1024 * 512 * 2  # two heads of q, rows rounded up to 128, 16 bits


@pytest.mark.parametrize(
    ("room", "heads"), [(6, [6]), (5, [3, 3]), (3, [3, 3]), (2, [2, 2, 2]), (1, [1] * 6)]
)
def test_heads_are_split_evenly(room: int, heads: list[int]) -> None:
    work = split_work(PROBLEM, room * OF_A_HEAD)
    assert [part.part_heads for part in work.parts] == heads
    assert [part.part_head for part in work.parts] == [sum(heads[:i]) for i in range(len(heads))]
    assert {(part.part_key, part.part_keys) for part in work.parts} == {(0, 500)}
    assert work.workspace_bytes == max(heads) * OF_A_HEAD
    assert not work.of_keys


def test_a_head_that_does_not_fit_is_split_by_keys() -> None:
    work = split_work(PROBLEM, OF_A_HEAD - 1)
    assert work.of_keys
    assert work.workspace_bytes == OF_A_HEAD // 2
    assert work.parts[:3] == (Part(0, 1, 0, 256), Part(0, 1, 256, 244), Part(1, 1, 0, 256))
    assert len(work.parts) == 12


def test_causal_parts_have_several_heads_and_a_range_of_their_keys() -> None:
    causal = replace(PROBLEM, causal=True)
    assert split_work(causal, 4 * OF_A_HEAD).parts == split_work(PROBLEM, 4 * OF_A_HEAD).parts
    work = split_work(causal, OF_A_HEAD)
    assert work.of_keys
    assert work.workspace_bytes == OF_A_HEAD
    assert [tuple(part.values.values()) for part in work.parts] == [
        (head, heads, key, min(128, 500 - key))
        for head, heads in ((0, 4), (4, 2))
        for key in range(0, 500, 128)
    ]


@pytest.mark.parametrize("causal", [False, True])
def test_the_workspace_is_never_larger_than_allowed(causal: bool) -> None:
    for mib in (1, 3, 7, 64, 512):
        for seq_k in (100, 4096, 50000):
            problem = replace(PROBLEM, seq_q=1024, seq_k=seq_k, causal=causal)
            work = split_work(problem, mib * MIB)
            assert work.workspace_bytes <= mib * MIB
            covered = sum(part.part_heads * part.part_keys for part in work.parts)
            assert covered == 6 * seq_k


def test_a_workspace_that_is_too_small_is_refused() -> None:
    with pytest.raises(UnsupportedError) as error:
        split_work(replace(PROBLEM, seq_q=4096), MIB)
    assert str(error.value) == (
        "dS of 128 keys and 4096 queries of 2 heads takes 2 MiB, and the workspace has 1: set"
        " FLASH_ATTENTION_WORKSPACE_MIB to at least that"
    )
