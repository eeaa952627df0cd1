# SPDX-License-Identifier: Apache-2.0
"""What a caller names becomes problems, or an error that says what to name."""

from __future__ import annotations

from pathlib import Path

import pytest

from flash_attention.call.backward_call import ALL
from flash_attention.choose.dense import DenseBackwardProblem, DenseProblem
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.bench.random_grid import COUNT, RANDOM_GRIDS
from flash_attention_workbench.tune.points import TUNABLE, problems_of, random_points


def test_grids_by_name() -> None:
    assert len(problems_of("fa3")) == 36
    assert {p.dtype for p in problems_of("fa3")} == {DType.BF16}
    assert {p.dtype for p in problems_of("seed")} == {DType.FP16}
    some = problems_of("fa3", d_heads=[64], masks=[True], dtype=DType.FP16)
    assert {(p.d_head, p.causal, p.dtype) for p in some} == {(64, True, DType.FP16)}
    assert len(some) == 6


def test_lengths_of_a_grid_by_name() -> None:
    assert {p.seq_k for p in problems_of("fa3", seq_lens=[512, 2048])} == {512, 2048}


def test_every_tunable_grid_is_dense() -> None:
    forward, of_gradients = (*TUNABLE[:3], "random"), ("backward_gqa", "backward_random")
    assert sorted((*forward, *of_gradients, "tangent")) == sorted(TUNABLE)
    drawn = [random_points(name, 0, COUNT) for name in RANDOM_GRIDS]
    assert [len(problems_of(name)) for name in forward] == [36, 6, 2, len(drawn[0])]
    found = [len(problems_of(name, pass_=Pass.BACKWARD)) for name in of_gradients]
    assert found == [4, len(drawn[1])]
    assert all(COUNT / 2 < len(points) < COUNT for points in drawn)


def test_problems_of_the_backward_pass() -> None:
    gradients = problems_of("fa3", pass_=Pass.BACKWARD)
    assert gradients == problems_of("backward", pass_=Pass.BACKWARD)
    assert [p.forward for p in map(backward, gradients)] == problems_of("fa3")
    assert {(p.wanted, p.deterministic) for p in map(backward, gradients)} == {(ALL, False)}
    (one,) = problems_of([Point(64, True, 512, 2, 4, 2)], pass_=Pass.BACKWARD, deterministic=True)
    assert str(one) == "BF16 d 64 causal, 2 x 512 rows x 4/2 heads, backward, deterministic"


def test_problems_with_tangents() -> None:
    tangents = problems_of("tangent", pass_=Pass.TANGENT)
    assert [str(p) for p in tangents[:2]] == [
        "BF16 d 64 full, 4 x 4096 rows x 32 heads, tangent",
        "BF16 d 64 full, 1 x 16384 rows x 32 heads, tangent",
    ]
    assert problems_of("fa3", pass_=Pass.TANGENT, d_heads=(64, 128), seq_lens=(4096, 16384)) == (
        tangents
    )
    assert [p.problem.features for p in problems_of("tangent")] == [
        p.problem.features for p in tangents
    ]
    with pytest.raises(UnsupportedError, match="the grid backward is one of gradients"):
        problems_of("backward", pass_=Pass.TANGENT)
    with pytest.raises(UnsupportedError, match="deterministic is asked for, which is about grad"):
        problems_of("tangent", pass_=Pass.TANGENT, deterministic=True)


def backward(problem: DenseProblem) -> DenseBackwardProblem:
    assert isinstance(problem, DenseBackwardProblem)
    return problem


@pytest.mark.parametrize("grid", ["backward", "backward_gqa", "training"])
def test_gradients_are_not_tuned_with_the_forward_pass(grid: str) -> None:
    with pytest.raises(UnsupportedError, match=f"the grid {grid} is one of gradients; tune the"):
        problems_of(grid)
    with pytest.raises(UnsupportedError, match="deterministic is asked for, which is about grad"):
        problems_of("fa3", deterministic=True)


def test_problems_of_a_file_with_fewer_queries_and_shared_heads(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(
        "batch=4 heads=16 seq=4096 d=128 causal\nheads=16 heads_k=4 seq_q=4096 seq=8192 d=64\n"
    )
    plain, grouped = problems_of(path)
    assert (plain.seq_q, plain.seq_k, plain.heads, plain.heads_k) == (4096, 4096, 16, 16)
    assert (grouped.seq_q, grouped.seq_k, grouped.heads, grouped.heads_k) == (4096, 8192, 16, 4)
    assert problems_of(str(path), d_heads=[64]) == problems_of(path, masks=[False]) == [grouped]
    assert problems_of(path, seq_lens=[4096]) == [plain]
    assert problems_of([Point(128, True, 4096, 4, 16)]) == [plain]
    with pytest.raises(UnsupportedError, match="no problem of the grid has these"):
        problems_of(path, d_heads=[256])


@pytest.mark.parametrize(
    ("point", "said"),
    [
        (Point(128, True, 4096, 1, 2, window=64), "d 128, window 64 has a window, and tables hold"),
        (Point(64, False, 512, 2, 2, lengths=(512, 100)), "612 in 2, .* has packed entries"),
        (Point(64, False, 512, 0, 2), "has nothing to compute"),
    ],
)
def test_what_tables_do_not_hold_is_refused(point: Point, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        problems_of([Point(64, True, 512, 2, 2), point])


@pytest.mark.parametrize("grid", ["window", "varlen"])
def test_so_are_the_grids_that_have_it(grid: str) -> None:
    with pytest.raises(UnsupportedError, match="tables hold full and causal attention"):
        problems_of(grid)


def test_an_unknown_grid_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match="unknown grid 'sead'; did you mean 'seed'"):
        problems_of("sead")
