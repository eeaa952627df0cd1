# SPDX-License-Identifier: Apache-2.0
"""What a benchmark measures, from its options, and the command that says so in full."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flash_attention.choose.tables import TABLE_VARIABLE
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType, KernelConfig, parse_kernel_config
from flash_attention.tools.bench.grid import GRIDS, Point
from flash_attention.tools.bench.grid_choice import Part, grid_points
from flash_attention.tools.bench.grid_file import read_lines
from flash_attention.tools.bench.names import FA3_VARIABLE
from flash_attention.tools.commands.options import numbers_of


@dataclass(frozen=True)
class Settings:
    """One benchmark, everything that was left out filled in."""

    grid: str  # a name, or a path
    dtype: DType
    points: tuple[Point, ...]
    peers: tuple[str, ...]
    config_file: Path | None
    configs: tuple[KernelConfig, ...]
    repeats: int
    hot: bool
    fa3: Path | None
    narrowed: tuple[str, ...]  # the options that chose some points of the grid
    heuristic: bool = False  # what is chosen without tables is timed too

    @property
    def grid_name(self) -> str:
        """What documents call the grid: a file by its name without what it ends in."""
        return self.grid if self.grid in GRIDS else Path(self.grid).stem

    def command(self) -> str:
        """The command that repeats it, whatever the defaults are then."""
        words = ["flash-attention", "bench", "--grid", self.grid, "--dtype"]
        words += [
            self.dtype.name.lower(),
            *self.narrowed,
            "--peers",
            ",".join(self.peers) or "none",
        ]
        if self.config_file is not None:
            words += ["--configs", str(self.config_file)]
        words += ["--heuristic"] if self.heuristic else []
        words += ["--repeats", str(self.repeats), "--hot" if self.hot else "--cold"]
        library = str(self.fa3 or os.environ.get(FA3_VARIABLE, ""))
        if library and "fa3" in self.peers:
            words += ["--fa3", library]
        table = os.environ.get(TABLE_VARIABLE)
        return (f"{TABLE_VARIABLE}={shlex.quote(table)} " if table else "") + shlex.join(words)


def points_of(
    grid: str, d_heads: str | None, causal: bool | None, seq_lens: str | None
) -> tuple[tuple[Point, ...], tuple[str, ...]]:
    """The points of a named grid or of a file, and the options that narrow it."""
    narrowed = [
        *(("--d-head", d_heads) if d_heads else ()),
        *(() if causal is None else ("--causal" if causal else "--full",)),
        *(("--seq", seq_lens) if seq_lens else ()),
    ]
    part = Part(
        numbers_of("--d-head", d_heads),
        None if causal is None else (causal,),
        numbers_of("--seq", seq_lens),
    )
    points = grid_points(grid, part)
    if not points:
        raise UnsupportedError(f"{grid} has no problem with {shlex.join(narrowed)}")
    return tuple(points), tuple(narrowed)


def read_configs(path: Path | None, dtype: DType) -> tuple[KernelConfig, ...]:
    """The configs of a file, short forms one a line, in the dtype that is measured."""
    lines: Iterable[str] = () if path is None else read_lines(path, "a file of kernel configs")
    return tuple(parse_kernel_config(line).in_dtype(dtype) for line in lines if line)
