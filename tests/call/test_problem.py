# SPDX-License-Identifier: Apache-2.0
"""A problem read from the tensors of a call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flash_attention.call.call import Call
from flash_attention.call.features import PLAIN, Features, MaskKind
from flash_attention.call.problem import Problem, normalised_mask
from flash_attention.call.results import E4M3

PROBLEM = Problem(
    batch=5,
    seq_q=192,
    seq_k=512,
    heads=6,
    heads_k=2,
    d_head=128,
    d_v=128,
    dtype=torch.float16,
    softmax_scale=128**-0.5,
)


def lengths(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32)


def test_a_problem_is_read_from_the_tensors() -> None:
    q = torch.empty(2, 192, 6, 64, dtype=torch.bfloat16)
    k = torch.empty(2, 320, 3, 64, dtype=torch.bfloat16)
    v = torch.empty(2, 320, 3, 40, dtype=torch.bfloat16)
    problem = Problem.of(Call(q, k, v))
    assert problem == Problem(
        batch=2,
        seq_q=192,
        seq_k=320,
        heads=6,
        heads_k=3,
        d_head=64,
        d_v=40,
        dtype=torch.bfloat16,
        softmax_scale=0.125,
    )
    assert (problem.heads_per_kv, problem.lse_shape) == (2, (2, 6, 192))
    assert problem.features == PLAIN
    call = Call(q, k, v, causal=True, softmax_scale=0.5, softcap=3.0, sinks=torch.empty(6))
    asked = Problem.of(call)
    assert asked == replace(problem, causal=True, softmax_scale=0.5, softcap=3.0, sinks=True)
    assert asked.features == Features(MaskKind.CAUSAL, softcap=True, sinks=True)


def test_a_packed_problem_has_the_lengths_the_caller_says() -> None:
    q, k = torch.empty(500, 6, 64), torch.empty(900, 2, 64)
    both = Call(
        *(q, k, k),
        cu_seqlens_q=lengths(5),
        cu_seqlens_k=lengths(5),
        max_seqlen_q=200,
        max_seqlen_k=300,
    )
    problem = Problem.of(both)
    assert (problem.batch, problem.seq_q, problem.seq_k) == (4, 200, 300)
    assert (problem.total_q, problem.total_k, problem.lse_shape) == (500, 900, (6, 500))
    assert problem.features == Features(per_batch=True)
    cache = torch.empty(4, 256, 2, 64)
    packed_q: dict[str, Any] = {"cu_seqlens_q": lengths(5), "max_seqlen_q": 200}
    mixed = Problem.of(Call(q, cache, cache, seqused_k=lengths(4), **packed_q))
    assert (mixed.batch, mixed.seq_k, mixed.total_k, mixed.seqused_k) == (4, 256, None, True)
    rows = torch.empty(4, 10, 6, 64)
    used = Problem.of(Call(rows, cache, cache, seqused_k=lengths(4)))
    assert (used.per_batch, used.lse_shape, used.total_q) == (True, (4, 6, 10), None)


@pytest.mark.parametrize(
    ("causal", "window", "expected"),
    [
        (False, None, (False, None)),
        (True, None, (True, None)),
        (False, (-1, -1), (False, None)),
        (False, (None, None), (False, None)),
        (False, (-1, 0), (True, None)),
        (False, (-1, 1), (False, (200, 1))),
        (True, (None, 7), (True, None)),
        (False, (5, 3), (False, (5, 3))),
        (True, (5, 3), (False, (5, 0))),
        (True, (5, -1), (False, (5, 0))),
        (False, (0, 0), (False, (0, 0))),
        (False, (5, None), (False, (5, 100))),
        (False, (-1, 5), (False, (200, 5))),
        (False, (1 << 40, 1 << 40), (False, (200, 100))),
    ],
)
def test_windows_are_brought_into_one_form(
    causal: bool, window: tuple[int | None, int | None] | None, expected: tuple[object, object]
) -> None:
    assert normalised_mask(causal, window, rows_q=100, rows_k=200) == expected


@pytest.mark.parametrize(
    "change",
    [{"batch": 0}, {"seq_q": 0}, {"seq_k": 0}, {"heads": 0}, {"heads": 0, "heads_k": 0}],
)
def test_without_a_query_or_a_key_there_is_nothing_to_launch(change: dict[str, Any]) -> None:
    assert not PROBLEM.idle
    assert replace(PROBLEM, **change).idle


def test_numbers_of_numpy_become_numbers_that_arguments_take() -> None:
    q = torch.empty(1, 8, 1, 64)
    whole: Any = np.int64(3)
    half: Any = np.float32(0.5)
    call = Call(q, q, q, window=(whole, whole), softmax_scale=half, softcap=half)
    problem = Problem.of(call)
    assert problem.window is not None
    numbers = (*problem.window, problem.softmax_scale, problem.softcap)
    assert [type(number) for number in numbers] == [int, int, float, float]


def test_packed_queries_are_no_more_tiles_than_their_rows_and_entries() -> None:
    packed = replace(PROBLEM, batch=100, seq_q=1000, total_q=1500)
    assert packed.num_tiles(128) == (1500 // 128 + 100) * 6
    assert replace(packed, seq_q=1).num_tiles(128) == 100 * 6
    assert replace(packed, total_q=None).num_tiles(128) == 800 * 6


def test_a_packed_problem_is_idle_when_its_tensors_are_empty() -> None:
    packed = replace(PROBLEM, total_q=10, total_k=10)
    assert not packed.idle
    assert not replace(packed, seq_q=0, seq_k=0).idle
    assert replace(packed, total_q=0).idle
    assert replace(packed, total_k=0).idle


def test_a_paged_problem_has_the_keys_that_its_table_names() -> None:
    q, pages = torch.empty(3, 10, 6, 64), torch.empty(40, 16, 2, 64)
    table = torch.zeros(3, 9, dtype=torch.int32)
    call = Call(q, pages, pages, seqused_k=lengths(3), block_table=table)
    problem = Problem.of(call)
    assert (problem.batch, problem.seq_k, problem.total_k) == (3, 9 * 16, None)
    assert (problem.pages, problem.page_keys, problem.table_stride) == (40, 16, 9)
    assert problem.features == Features(per_batch=True, page_keys=16)
    part = Problem.of(call._replace(block_table=table[:, :4]))
    assert (part.seq_k, part.table_stride) == (4 * 16, 9)
    assert Problem.of(Call(q, q, q)).table_stride == 0


def test_a_paged_problem_without_a_page_is_idle() -> None:
    paged = replace(PROBLEM, seqused_k=True, page_keys=16, pages=40)
    assert not paged.idle
    assert replace(paged, pages=0).idle


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {},
            "batch 5, 192 x 512 queries and keys, 6 heads (2 of k and v), d 128, float16",
        ),
        (
            {"heads_k": 6, "d_v": 64, "causal": True, "softcap": 0.5},
            "batch 5, 192 x 512 queries and keys, 6 heads, d 128 (64 of v), float16, causal,"
            " softcap 0.5",
        ),
        (
            {"heads_k": 6, "window": (7, 0), "sinks": True, "seqused_k": True, "page_keys": 64},
            "batch 5, up to 192 x 512 queries and keys, 6 heads, d 128, float16, window (7, 0),"
            " sinks, pages of 64 keys",
        ),
        (
            {"heads_k": 6, "kv_dtype": E4M3, "page_keys": 1, "v_transposed": True, "total_k": 9},
            "batch 5, up to 192 x 512 queries and keys, 6 heads, d 128, float16 (k and v"
            " float8_e4m3fn), pages of 1 keys, v transposed",
        ),
    ],
    ids=["heads", "values", "features", "8 bits"],
)
def test_a_problem_is_said_in_one_line(change: dict[str, Any], said: str) -> None:
    assert str(replace(PROBLEM, **change)) == said
