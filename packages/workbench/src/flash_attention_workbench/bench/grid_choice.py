# SPDX-License-Identifier: Apache-2.0
"""The grid that a name or a file stands for, and the part of it that is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.choices import checked_choice
from flash_attention_workbench.bench.grid import GRIDS, Point
from flash_attention_workbench.bench.grid_file import read_grid

FILE_DTYPE = DType.BF16  # of a grid of one's own, unless told otherwise


@dataclass(frozen=True)
class Part:
    """Head dimensions, masks (causal or not) and lengths of keys to keep; None: all there are."""

    d_heads: Sequence[int] | None = None
    masks: Sequence[bool] | None = None
    seq_lens: Sequence[int] | None = None

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
    path = Path(grid)
    if not os.path.isfile(path):
        checked_choice("grid", str(grid), (*GRIDS, "FILE"))
    return part.of(read_grid(path))


def grid_dtype(grid: str | os.PathLike[str]) -> DType:
    """The element type of a grid that is given none."""
    return GRIDS[grid].dtype if isinstance(grid, str) and grid in GRIDS else FILE_DTYPE
