# SPDX-License-Identifier: Apache-2.0
"""The grids hold the problems they are named for."""

from __future__ import annotations

import pytest
import torch

from flash_attention.call.call import Call
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.grid import GRIDS, Point
from flash_attention_workbench.explain.work import work_of


def every(name: str) -> list[Point]:
    return GRIDS[name].points()


def test_the_fa3_grid_has_16k_tokens_of_2048_everywhere() -> None:
    grid = every("fa3")
    assert len(set(grid)) == 36
    assert {(p.d_head, p.causal) for p in grid} == {
        (d, causal) for d in (64, 128, 256) for causal in (False, True)
    }
    assert {p.batch * p.seq_len for p in grid} == {16384}
    assert {p.heads * p.d_head for p in grid} == {2048}


def test_the_seed_grid_is_the_ladders() -> None:
    shapes = [(p.batch, p.seq_len, p.heads, p.d_head, p.causal) for p in every("seed")]
    assert shapes[0] == (16, 512, 16, 128, False)
    assert shapes[-1] == (4, 16384, 16, 128, False)
    assert len(shapes) == 6


def test_a_causal_mask_halves_the_flop() -> None:
    point = Point(128, False, 2048, 8, 16)
    assert point.flop == 4 * 8 * 16 * 2048 * 2048 * 128
    assert Point(128, True, 2048, 8, 16).flop == point.flop // 2


def test_a_point_as_a_problem() -> None:
    problem = Point(256, True, 512, 32, 8).problem(DType.BF16)
    assert (problem.batch, problem.seq_q, problem.seq_k, problem.heads) == (32, 512, 512, 8)
    assert (problem.heads_k, problem.d_head, problem.causal) == (8, 256, True)
    assert problem.dtype == torch.bfloat16


def test_lengths_and_head_dimensions_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="divide 16384"):
        GRIDS["fa3"].points((64,), (False,), (1000,))
    with pytest.raises(UnsupportedError, match="head dimensions 2048; 512 and 96 do not"):
        GRIDS["fa3"].points((96,), (False,), (512,))
    with pytest.raises(UnsupportedError, match="the seed grid has the lengths 512, 1024"):
        GRIDS["seed"].points((128,), (False,), (256,))
    with pytest.raises(UnsupportedError, match="one query, the last, sees every key"):
        GRIDS["decode"].points(masks=(True,))
    with pytest.raises(UnsupportedError, match="window ends at its query"):
        GRIDS["window"].points(masks=(False,))


def test_the_decode_grid_has_grouped_heads_and_up_to_half_a_million_keys() -> None:
    grid = every("decode")
    assert len(grid) == 14
    assert {p.batch for p in grid if p.seq_len == 8192} == {1, 4, 16, 64}
    assert {p.batch for p in grid if p.seq_len == 65536} == {1, 4}
    assert {(p.heads, p.kv_heads, p.queries, p.d_head, p.decode) for p in grid} == {
        (32, 8, 1, 128, True)
    }
    assert grid[0].kv_bytes(DType.BF16) == 2 * 512 * 8 * 128 * 2
    assert grid[0].flop == 4 * 32 * 512 * 128


def test_packed_entries_are_of_any_length_and_always_the_same() -> None:
    grid = every("varlen")
    assert [(p.causal, p.kv_heads) for p in grid] == 2 * [(False, 32), (False, 8)] + 2 * [
        (True, 32),
        (True, 8),
    ]
    for point, longest in zip(grid, 2 * [1024, 1024, 4096, 4096], strict=True):
        assert len(point.lengths) == point.batch == 16
        assert min(point.lengths) >= 64
        assert longest / 2 < max(point.lengths) == point.seq_len <= longest
        assert len({length % 64 for length in point.lengths}) > 8
        halves = 2 if point.causal else 1
        assert point.flop == 4 * 32 * 128 * (sum(n * n for n in point.lengths) // halves)
    assert every("varlen") == grid


def test_a_causal_mask_ends_at_the_last_key() -> None:
    """Half of a square at the last keys; one query, the last, sees all."""
    assert Point(64, True, 100, 2, 3, seq_q=10).flop == 4 * 64 * 3 * 2 * (10 * 90 + 10 * 10 // 2)
    whole = Point(64, False, 8192, 2, 3, seq_q=1).flop
    assert Point(64, True, 8192, 2, 3, seq_q=1).flop == pytest.approx(whole, rel=1e-3)
    point = Point(64, True, 100, 2, 3, seq_q=10)
    q, k = (torch.empty(2, n, 3, 64, dtype=torch.bfloat16, device="meta") for n in (10, 100))
    assert point.flop == work_of(point.problem(DType.BF16), Call(q, k, k, causal=True)).flop


def test_the_flop_of_a_window_are_those_of_the_keys_in_it() -> None:
    assert [point.window for point in every("window")] == [1024, 2048, 4096]
    assert {(point.seq_len, point.causal) for point in every("window")} == {(16384, True)}
    short = Point(64, True, 6, 2, 3, window=2)
    assert short.flop == 4 * 64 * 3 * 2 * (1 + 2 + 2 + 2 + 2 + 2)
    assert Point(64, True, 6, 2, 3, seq_q=1, window=2).flop == 4 * 64 * 3 * 2 * 2


def test_grouped_heads_have_the_flop_of_their_queries() -> None:
    long, longest = every("prefill_gqa")
    assert [(p.batch, p.seq_len) for p in (long, longest)] == [(4, 4096), (1, 16384)]
    assert longest.flop == 4 * 32 * 128 * 16384**2 // 2


def test_what_is_asked_beyond_shapes_reaches_the_problem() -> None:
    point = every("varlen")[1]
    packed = point.problem(DType.BF16)
    assert (packed.batch, packed.total_q, packed.per_batch) == (16, sum(point.lengths), True)
    assert packed.seq_q == max(point.lengths)
    window = every("window")[0]
    assert window.problem(DType.FP16).window == (1023, 0)
    decode = every("decode")[0].problem(DType.BF16)
    assert (decode.seq_q, decode.seq_k, decode.heads_per_kv) == (1, 512, 4)


def test_labels_say_what_tells_points_apart() -> None:
    labels = [point.label for name in GRIDS for point in every(name)]
    assert len(labels) == len({(point, name) for name in GRIDS for point in every(name)})
    assert every("decode")[0].label == "1 x 512, 1 q, 32/8 h, d 128, full"
    rows = sum(every("varlen")[0].lengths)
    assert every("varlen")[0].label == f"{rows} in 16, 32 h, d 128, full"
    assert every("window")[0].label == "1 x 16384, 16 h, d 128, window 1024"
    assert Point(64, True, 512, 32, 8).label == "32 x 512, 8 h, d 64, causal"
