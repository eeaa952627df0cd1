# SPDX-License-Identifier: Apache-2.0
"""Checks that a problem fits a Hopper config."""

from __future__ import annotations

from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.families.config import KernelConfig
from flash_attention.families.fit import MAX_GRID_X, check_columns, check_dtype, check_values
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.splits import KvSplits


def check_fits(config: HopperForwardKernelConfig, problem: Problem, split: KvSplits | None) -> None:
    """Raise UnsupportedError unless kernels of the config can run the problem."""
    check_dtype(config, problem)
    check_values(config, problem)
    if not config.tma:
        _check_d_head(config, problem)
    check_columns(config, problem)
    if split is not None and split.ctas == 0 and problem.total_q is not None:
        raise UnsupportedError(
            "split_keys is given with cu_seqlens_q, and the keys of packed queries are not split;"
            " leave split_keys out, or pass q with a batch dimension"
        )
    tiles = None
    if split is not None:
        tiles = split.num_tiles(problem, config.consumers) * split.key_blocks
    check_tiles(config, problem, tiles)


def check_tiles(config: KernelConfig, problem: Problem, tiles: int | None = None) -> None:
    """Check that a launch takes so many tiles, or those of the problem's rows."""
    tiles = problem.num_tiles(config.B_r) if tiles is None else tiles
    if tiles > MAX_GRID_X:
        raise UnsupportedError(
            f"{problem.batch} sequences of {problem.seq_q} queries and {problem.heads} heads"
            f" are {tiles} tiles of {config.B_r} rows of one head; a launch takes at most"
            f" {MAX_GRID_X}, split the tensors along batch"
        )


def _check_d_head(config: HopperForwardKernelConfig, problem: Problem) -> None:
    for d_head in (problem.d_head, problem.d_v):
        if d_head != config.d_head:
            raise UnsupportedError(
                f"the kernel config is for d_head {config.d_head}, the tensors have d_head"
                f" {d_head}; pass a config of their d_head"
            )
