# SPDX-License-Identifier: Apache-2.0
"""FLOP and bytes, beside masks written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.kernel_configs import DType
from flash_attention.reference.judge import cu_seqlens
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.explain.work import Work, work_of


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def work(q: Tensor, k: Tensor, v: Tensor, **asked: Any) -> Work:
    call = Call(q, k, v, **asked)
    return work_of(Problem.of(call), call)


def seen(seq_q: int, seq_k: int, left: int, right: int) -> int:
    place = torch.arange(seq_q)[:, None] + seq_k - seq_q
    key = torch.arange(seq_k)
    return int(((key >= place - left) & (key <= place + right)).sum())


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_counts_as_the_benchmarks_do(causal: bool) -> None:
    point = Point(128, causal, 512, 4, 16)
    q = meta(4, 512, 16, 128)
    counted = work_of(point.problem(DType.BF16), Call(q, q, q, causal=causal))
    assert counted == work(q, q, q, causal=causal)
    assert counted == Work(point.flop, 4 * 4 * 512 * 16 * 128 * 2, exact=True)
    assert counted.intensity == point.flop / counted.num_bytes


@pytest.mark.parametrize("lengths", [(5, 9), (9, 5), (7, 7), (1, 6), (6, 1)])
@pytest.mark.parametrize("window", [(0, 0), (2, 1), (0, 3), (4, 0), (100, 100), (-1, 2), (3, -1)])
def test_of_a_window_every_score_counts_that_it_leaves(
    lengths: tuple[int, int], window: tuple[int, int]
) -> None:
    seq_q, seq_k = lengths
    q, k = meta(2, seq_q, 4, 64), meta(2, seq_k, 2, 64)
    left, right = (side if side >= 0 else 1000 for side in window)
    scores = 2 * 4 * seen(seq_q, seq_k, left, right)
    assert work(q, k, k, window=window).flop == 4 * 64 * scores


def test_a_causal_mask_of_two_lengths_is_a_triangle_and_what_lies_before_it() -> None:
    q, k = meta(1, 4, 1, 64), meta(1, 10, 1, 64)
    assert work(q, k, k, causal=True).flop == 4 * 64 * (4 * 6 + 4 * 4 // 2)
    assert work(k, q, q, causal=True).flop == 4 * 64 * (4 * 4 // 2)


def test_shared_heads_and_a_narrower_v_are_moved_once() -> None:
    counted = work(meta(2, 8, 6, 64), meta(2, 12, 2, 64), meta(2, 12, 2, 32))
    assert counted.flop == 2 * (64 + 32) * 2 * 6 * 8 * 12
    assert counted.num_bytes == 2 * 2 * (8 * 6 * (64 + 32) + 12 * 2 * (64 + 32))


def test_tensors_of_8_bits_have_half_the_bytes_and_their_factors_no_part_in_the_work() -> None:
    q, one = meta(2, 8, 6, 64), meta(1, dtype=torch.float32)
    k = meta(2, 12, 2, 64, dtype=torch.float8_e4m3fn)
    flop, rows, keys = 4 * 64 * 2 * 6 * 8 * 12, 2 * 8 * 6 * 64, 2 * 12 * 2 * 64
    counted = work(q, k, k, k_descale=one, v_descale=one)
    assert counted == Work(flop, 2 * 2 * rows + 2 * keys, exact=True)
    of_8_bits = work(q.to(k.dtype), k, k, q_descale=one, k_descale=one, v_descale=one)
    assert of_8_bits == Work(flop, 3 * rows + 2 * keys, exact=True)


def test_lengths_of_entries_are_read_and_where_they_cannot_be_all_count_as_the_longest() -> None:
    q, k, pages = meta(11, 2, 64), meta(9, 2, 64), meta(40, 16, 2, 64)
    starts_q, starts_k = cu_seqlens((3, 8)), cu_seqlens((7, 2))
    packed = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}
    counted = work(q, k, k, **packed, max_seqlen_q=8, max_seqlen_k=7)
    assert counted == Work(4 * 64 * 2 * (3 * 7 + 8 * 2), 2 * 2 * 64 * 2 * (11 + 9), exact=True)
    used = torch.tensor([40, 1], dtype=torch.int32)
    table = torch.zeros(2, 3, dtype=torch.int32)
    paged = {"cu_seqlens_q": starts_q, "seqused_k": used, "block_table": table}
    assert work(q, pages, pages, **paged, max_seqlen_q=8).flop == 4 * 64 * 2 * (3 * 40 + 8)
    blind = {name: tensor.to("meta") for name, tensor in paged.items()}
    longest = work(q, pages, pages, **blind, max_seqlen_q=8)
    assert (longest.flop, longest.exact) == (4 * 64 * 2 * 2 * 8 * 48, False)
