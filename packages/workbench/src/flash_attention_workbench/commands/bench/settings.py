# SPDX-License-Identifier: Apache-2.0
"""What a benchmark measures, from its options, and the command that says so in full."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from flash_attention.choose.tables import TABLE_VARIABLE
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.families.registry import check_pass
from flash_attention.kernel_configs import (
    SET_VARIABLE,
    DType,
    KernelConfig,
    as_kernel_config,
    chosen_set,
    get_kernel_configs,
)
from flash_attention.ladder import LADDER_D_HEADS
from flash_attention.launch.device import current_arch
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.grid_choice import (
    Part,
    grid_measured,
    grid_points,
    is_named,
    seed_and_count,
)
from flash_attention_workbench.bench.grid_file import read_lines
from flash_attention_workbench.bench.peers.fa3 import FA3_VARIABLE
from flash_attention_workbench.bench.random_grid import RANDOM_GRIDS
from flash_attention_workbench.commands.options import numbers_of


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
    graph: bool = False  # contenders replay CUDA graphs

    @property
    def grid_name(self) -> str:
        """What documents call the grid: a file by its name without what it ends in."""
        return self.grid if is_named(self.grid) else Path(self.grid).stem

    @property
    def measured(self) -> Measured:
        """What is measured: the forward pass, unless the grid says more."""
        return grid_measured(self.grid)

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
        words += ["--graph"] if self.graph else []
        words += ["--repeats", str(self.repeats), "--hot" if self.hot else "--cold"]
        library = str(self.fa3 or os.environ.get(FA3_VARIABLE, ""))
        if library and "fa3" in self.peers:
            words += ["--fa3", library]
        read = [TABLE_VARIABLE, *([] if self.config_file else [SET_VARIABLE])]
        set_to = [f"{n}={shlex.quote(os.environ[n])}" for n in read if os.environ.get(n)]
        return " ".join((*set_to, shlex.join(words)))


def check_gpu() -> None:
    """Refuse to measure where there is no GPU."""
    if not torch.cuda.is_available():
        raise UnsupportedError(
            "bench times kernels on an NVIDIA GPU, and torch finds none; without one, `flash-"
            "attention inspect` and `flash-attention ladder run` say what can be known"
        )


def check_unused(grid: str, given: Mapping[str, object]) -> None:
    """Refuse options that are for other grids. Those that were left out are None."""
    for option, value in given.items():
        if value is not None:
            raise UnsupportedError(f"{option} is for other grids than {grid}; leave it out")


def points_of(
    grid: str,
    d_heads: str | None,
    causal: bool | None,
    seq_lens: str | None,
    drawn: tuple[int | None, int | None] = (None, None),
) -> tuple[tuple[Point, ...], tuple[str, ...]]:
    """The points of a named grid or of a file, and the options that narrow it. `drawn` are the seed
    and the count of random ones."""
    seed, count = seed_and_count(grid, *drawn)
    narrowed = [
        *(("--seed", str(seed), "--count", str(count)) if grid in RANDOM_GRIDS else ()),
        *(("--d-head", d_heads) if d_heads else ()),
        *(() if causal is None else ("--causal" if causal else "--full",)),
        *(("--seq", seq_lens) if seq_lens else ()),
    ]
    part = Part(
        numbers_of("--d-head", d_heads),
        None if causal is None else (causal,),
        numbers_of("--seq", seq_lens),
        *(seed, count),
    )
    points = grid_points(grid, part)
    if not points:
        raise UnsupportedError(f"{grid} has no problem with {shlex.join(narrowed)}")
    return tuple(points), tuple(narrowed)


def read_configs(path: Path | None, dtype: DType, pass_: Pass) -> tuple[KernelConfig, ...]:
    """The configs of a file, short forms or rungs of a pass one a line, in the data type that is
    measured; without a file, those of the set that the environment names."""
    if path is None:
        configs = get_kernel_configs(arch=current_arch(), pass_=pass_) if chosen_set() else []
        return tuple(config for config in configs if config.dtype is dtype)
    lines = read_lines(path, "a file of kernel configs")
    forms = [(line, d_head) for line in lines if line for d_head in LADDER_D_HEADS]
    read = [
        as_kernel_config(line, dtype=dtype, d_head=d_head, pass_=pass_) for line, d_head in forms
    ]
    for config in read:
        check_pass(config, pass_)
    return tuple(dict.fromkeys(config.in_dtype(dtype) for config in read))
