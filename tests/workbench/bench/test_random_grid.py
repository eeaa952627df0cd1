# SPDX-License-Identifier: Apache-2.0
"""Random problems of real models."""

from __future__ import annotations

from statistics import median

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.grid_choice import (
    Part,
    grid_dtype,
    grid_measured,
    grid_points,
    seed_and_count,
)
from flash_attention_workbench.bench.random_grid import (
    COUNT,
    LONGEST,
    MODELS,
    MOST_TOKENS,
    RANDOM_GRIDS,
    SHORTEST,
)

MANY = 2000


def drawn(grid: str = "random", seed: int = 3) -> list[Point]:
    return RANDOM_GRIDS[grid].points(seed, MANY)


def test_a_seed_draws_the_same_problems_however_many() -> None:
    assert drawn()[:COUNT] == grid_points("random", Part(seed=3))
    assert drawn()[:COUNT] != grid_points("random", Part(seed=4))
    assert drawn()[:COUNT] != grid_points("backward_random", Part(seed=3))


def test_every_model_and_kind_is_drawn() -> None:
    points = drawn()
    models = {(point.heads, point.heads_k, point.d_head) for point in points}
    assert models == {model[:3] for model in MODELS.values()}
    kinds = [
        "packed" if p.lengths else "window" if p.window else "chunk" if p.seq_q else "dense"
        for p in points
    ]
    for kind in ("packed", "window", "chunk", "dense"):
        assert 0.02 * MANY < kinds.count(kind) < 0.8 * MANY
    assert 0.2 * MANY < sum(p.causal for p in points) < 0.8 * MANY


@pytest.mark.parametrize("grid", RANDOM_GRIDS)
def test_lengths_are_even_by_their_logarithm_and_half_are_no_powers_of_two(grid: str) -> None:
    lengths = [point.seq_len for point in drawn(grid) if not point.lengths]
    assert SHORTEST <= min(lengths) < 2 * SHORTEST
    assert LONGEST / 2 < max(lengths) <= LONGEST
    assert 800 < median(lengths) < 2000  # of all lengths 1,448, and powers of two are rounded down
    plain = sum(length & (length - 1) == 0 for length in lengths) / len(lengths)
    assert 0.45 < plain < 0.58


def test_problems_are_those_of_a_batch() -> None:
    for point in drawn():
        assert point.problem(DType.BF16).heads == point.heads
        tokens = sum(point.lengths) or point.batch * point.seq_len
        assert tokens <= MOST_TOKENS
        assert 0 <= point.seq_q < point.seq_len
        assert 0 <= point.window < point.seq_len
        assert not point.lengths or (min(point.lengths) > 0 and len(point.lengths) == point.batch)


def test_gradients_have_as_many_queries_as_keys() -> None:
    assert not any(point.seq_q for point in drawn("backward_random"))
    assert grid_measured("backward_random") is Measured.BACKWARD
    assert grid_measured("random") is Measured.FORWARD
    assert grid_dtype("random") is DType.BF16


def test_a_part_is_taken_after_the_draw() -> None:
    wide = grid_points("random", Part(d_heads=[256], seed=3, count=MANY))
    assert wide == [point for point in drawn() if point.d_head == 256]


def test_other_grids_have_no_seed() -> None:
    assert seed_and_count("random", None, None) == (0, COUNT)
    assert seed_and_count("random", 7, 5) == (7, 5)
    with pytest.raises(UnsupportedError, match="--seed and --count is given, and the problems of"):
        seed_and_count("fa3", 1, 2)
