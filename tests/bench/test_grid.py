# SPDX-License-Identifier: Apache-2.0
"""The grids hold the problems they are named for."""

from __future__ import annotations

import pytest
import torch

from flash_attention.bench.grid import GRIDS, Point, points
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType


def every(name: str) -> list[Point]:
    grid = GRIDS[name]
    return points(name, grid.d_heads, grid.masks, grid.seq_lens)


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
        points("fa3", (64,), (False,), (1000,))
    with pytest.raises(UnsupportedError, match="head dimensions 2048; 512 and 96 do not"):
        points("fa3", (96,), (False,), (512,))
    with pytest.raises(UnsupportedError, match="the seed grid has the lengths 512, 1024"):
        points("seed", (128,), (False,), (256,))
