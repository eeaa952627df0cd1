# SPDX-License-Identifier: Apache-2.0
"""The grid that a name or a file stands for, and the part of it that is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.choices import checked_choice
from flash_attention_workbench.bench.grid import GRIDS, Grid, Measured, Point
from flash_attention_workbench.bench.grid_file import read_grid
from flash_attention_workbench.bench.random_grid import COUNT, RANDOM_GRIDS, RandomGrid

NAMED_GRIDS: dict[str, Grid | RandomGrid] = {**GRIDS, **RANDOM_GRIDS}
FILE_DTYPE = DType.BF16  # of a grid of one's own, unless told otherwise


@dataclass(frozen=True)
class Part:
    """Head dimensions, masks (causal or not) and lengths of keys to keep; None: all there are.
    Random problems are drawn with a seed, `count` of them."""

    d_heads: Sequence[int] | None = None
    masks: Sequence[bool] | None = None
    seq_lens: Sequence[int] | None = None
    seed: int = 0
    count: int = COUNT

    def of(self, points: Iterable[Point]) -> list[Point]:
        """Those of the points that are asked for."""
        return [
            point
            for point in points
            if (self.d_heads is None or point.d_head in self.d_heads)
            and (self.masks is None or point.causal in self.masks)
            and (self.seq_lens is None or point.seq_len in self.seq_lens)
        ]


def grid_points(grid: str | os.PathLike[str], part: Part) -> list[Point]:
    """The points of a named grid, made for what is asked for, or those of a file that have it."""
    if isinstance(grid, str) and grid in GRIDS:
        return GRIDS[grid].points(part.d_heads, part.masks, part.seq_lens)
    if isinstance(grid, str) and grid in RANDOM_GRIDS:
        return part.of(RANDOM_GRIDS[grid].points(part.seed, part.count))
    path = Path(grid)
    if not os.path.isfile(path):
        checked_choice("grid", str(grid), (*NAMED_GRIDS, "FILE"))
    return part.of(read_grid(path))


def grid_dtype(grid: str | os.PathLike[str]) -> DType:
    """The element type of a grid that is given none."""
    return NAMED_GRIDS[grid].dtype if is_named(grid) else FILE_DTYPE


def grid_measured(grid: object) -> Measured:
    """What a named grid measures; problems of a file are forward passes."""
    return NAMED_GRIDS[grid].measured if is_named(grid) else Measured.FORWARD


def is_named(grid: object) -> TypeGuard[str]:
    """Whether a grid is known by a name."""
    return isinstance(grid, str) and grid in NAMED_GRIDS


def seed_and_count(grid: str, seed: int | None, count: int | None) -> tuple[int, int]:
    """The seed and the number of random problems. Other grids have none, and refuse them."""
    given = {"--seed": seed, "--count": count}
    names = [name for name, value in given.items() if value is not None]
    if names and grid not in RANDOM_GRIDS:
        raise UnsupportedError(
            f"{' and '.join(names)} is given, and the problems of {grid} are not drawn; leave it"
            f" out, or choose --grid {' or '.join(RANDOM_GRIDS)}"
        )
    return seed or 0, COUNT if count is None else count
