# SPDX-License-Identifier: Apache-2.0
"""From what a caller names to the problems to tune: a grid, a file of problems, points."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.tangent_call import TangentProblem
from flash_attention.choose.dense import DenseProblem
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.bench.grid_choice import (
    FILE_DTYPE,
    Part,
    grid_dtype,
    grid_measured,
    grid_points,
)
from flash_attention_workbench.bench.random_grid import RANDOM_GRIDS

TUNABLE = ("fa3", "seed", "prefill_gqa", "backward_gqa", "tangent", *RANDOM_GRIDS)
"""The grids that tables can hold; of random problems, those without a window or packed ones."""


def random_points(grid: str, seed: int, count: int) -> list[Point]:
    """The problems of a grid of random ones that tables can hold."""
    points = RANDOM_GRIDS[grid].points(seed, count)
    return [point for point in points if not (point.window or point.lengths)]


def problems_of(
    grid: str | os.PathLike[str] | Sequence[Point],
    *,
    d_heads: Sequence[int] | None = None,
    masks: Sequence[bool] | None = None,
    seq_lens: Sequence[int] | None = None,
    dtype: DType | None = None,
    pass_: Pass = Pass.FORWARD,
    deterministic: bool = False,
) -> list[DenseProblem]:
    """The problems of a grid, in its own type and at its own head dimensions, masks and lengths
    unless given; of a file or a list, those that have them, in bfloat16 unless given. Those of the
    backward pass are of all gradients, perhaps `deterministic` ones."""
    if pass_ is not Pass.BACKWARD:
        _check_no_gradients(grid, deterministic)
    part = Part(d_heads, masks, seq_lens)
    if isinstance(grid, str) and grid in RANDOM_GRIDS:
        grid = random_points(grid, part.seed, part.count)
    if isinstance(grid, str | os.PathLike):
        points, element = grid_points(grid, part), dtype or grid_dtype(grid)
    else:
        points, element = part.of(grid), dtype or FILE_DTYPE
    if not points:
        raise UnsupportedError("no problem of the grid has these head dimensions, masks, lengths")
    return [_dense(point, element, pass_, deterministic) for point in points]


def _check_no_gradients(
    grid: str | os.PathLike[str] | Sequence[Point], deterministic: bool
) -> None:
    if deterministic:
        raise UnsupportedError(
            "deterministic is asked for, which is about gradients; tune the backward pass, or leave"
            " it out"
        )
    if grid_measured(grid).pass_ is Pass.BACKWARD:
        raise UnsupportedError(
            f"the grid {grid} is one of gradients; tune the backward pass, or choose a grid of the"
            " forward pass"
        )


def _dense(point: Point, dtype: DType, pass_: Pass, deterministic: bool) -> DenseProblem:
    problem = point.problem(dtype)
    if pass_ is Pass.BACKWARD:
        problem = BackwardProblem.of_pass(problem, deterministic=deterministic)
    elif pass_ is Pass.TANGENT:
        problem = TangentProblem.of_pass(problem)
    dense = DenseProblem.of(problem)
    if dense is None:
        packed = "packed entries (lengths)" if point.lengths else "nothing to compute"
        raise UnsupportedError(
            f"{point.label} has {'a window' if point.window else packed}, and tables hold full and"
            " causal attention of one length: leave it out of the grid"
        )
    return dense
