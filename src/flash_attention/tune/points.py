# SPDX-License-Identifier: Apache-2.0
"""From what a caller names to the problems to tune: a grid, a file of points, points."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from flash_attention.bench.grid import GRIDS, Point, points
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention.problem import Problem
from flash_attention.tune.dense import DenseProblem

OPTIONAL = ("heads_k", "seq_k")


def problems_of(
    grid: str | os.PathLike[str] | Sequence[Point],
    *,
    d_heads: Sequence[int] | None = None,
    masks: Sequence[bool] | None = None,
    dtype: DType | None = None,
) -> list[DenseProblem]:
    """The problems of a grid, in its own type and at its own head dimensions and masks unless
    given; of a file or a list, those that have them, in bfloat16 unless given."""
    if isinstance(grid, str) and grid in GRIDS:
        named = GRIDS[grid]
        given = points(grid, d_heads or named.d_heads, masks or named.masks, named.seq_lens)
        dtype = dtype or named.dtype
    else:
        listed = read_points(Path(grid)) if isinstance(grid, str | os.PathLike) else grid
        given = [
            point
            for point in listed
            if (d_heads is None or point.d_head in d_heads)
            and (masks is None or point.causal in masks)
        ]
    if not given:
        raise UnsupportedError("there is no point to tune at these head dimensions and masks")
    return [_dense(point.problem(dtype or DType.BF16)) for point in given]


def _dense(problem: Problem) -> DenseProblem:
    dense = DenseProblem.of(problem)
    if dense is None:
        raise UnsupportedError(f"{problem} has nothing to compute, so nothing to tune")
    return dense


def read_points(path: Path) -> list[Point]:
    """The points of a JSON file, every field checked."""
    if not path.exists():
        nearest = difflib.get_close_matches(str(path), GRIDS, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise UnsupportedError(
            f"there is no grid {str(path)!r} and no such file; grids are {', '.join(GRIDS)}{hint}"
        )
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UnsupportedError(f"{path} is not a list of points: {error}") from error
    if not isinstance(data, list) or not data:
        raise UnsupportedError(f"{path} is not a list of points; a point is {_EXAMPLE}")
    return [_point(item, f"point {number} of {path}") for number, item in enumerate(data, 1)]


_EXAMPLE = '{"d_head": 128, "causal": true, "seq_len": 4096, "batch": 4, "heads": 16}'


def _point(item: Any, where: str) -> Point:
    names = [f.name for f in fields(Point)]
    if not isinstance(item, dict):
        raise UnsupportedError(f"{where} is {item!r}; a point is {_EXAMPLE}")
    if unknown := sorted(set(item) - set(names)):
        raise UnsupportedError(f"{where}: unknown field {unknown[0]!r}; there are {names}")
    if missing := [n for n in names if n not in item and n not in OPTIONAL]:
        raise UnsupportedError(f"{where}: {missing[0]} is missing; a point is {_EXAMPLE}")
    for name, value in item.items():
        if name == "causal":
            if not isinstance(value, bool):
                raise UnsupportedError(f"{where}: causal is {value!r}; use true or false")
        elif type(value) is not int or value < 1:
            raise UnsupportedError(f"{where}: {name} is {value!r}; use an integer from 1")
    point = Point(**item)
    if point.heads % (point.heads_k or point.heads):
        raise UnsupportedError(
            f"{where}: heads is {point.heads}, no multiple of heads_k, which is {point.heads_k}"
        )
    return point
