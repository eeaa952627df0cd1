# SPDX-License-Identifier: Apache-2.0
"""A grid by its name and by a file, whole and in part."""

from __future__ import annotations

from pathlib import Path

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.grid import GRIDS, Point
from flash_attention_workbench.bench.grid_choice import Part, grid_dtype, grid_points


def test_a_name_is_made_for_what_is_asked() -> None:
    assert grid_points("fa3", Part()) == GRIDS["fa3"].points()
    assert grid_points("fa3", Part([32], [True], [256])) == [Point(32, True, 256, 64, 64)]
    assert (grid_dtype("fa3"), grid_dtype("seed")) == (DType.BF16, DType.FP16)


def test_of_a_file_those_that_have_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("heads=2 seq=512 d=64\nheads=2 seq=256 d=128 causal\nheads=1 seq=512 d=128\n")
    first, second, third = grid_points(path, Part())
    assert grid_points(str(path), Part(d_heads=[128])) == [second, third]
    assert grid_points(path, Part(masks=[False])) == [first, third]
    assert grid_points(path, Part(d_heads=[128], seq_lens=[512])) == [third]
    assert grid_points(path, Part(d_heads=[256])) == []
    assert grid_dtype(path) == DType.BF16


def test_neither_a_name_nor_a_file() -> None:
    with pytest.raises(UnsupportedError, match="unknown grid 'sead'; did you mean 'seed'"):
        grid_points("sead", Part())
