# SPDX-License-Identifier: Apache-2.0
"""Which problems kernels for wide heads run."""

from __future__ import annotations

from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.families.fit import check_dtype
from flash_attention.families.sm90.forward.fit import check_tiles
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.wide.config import HopperWideKernelConfig


def check_fits(
    config: HopperWideKernelConfig, problem: Problem, kv_splits: KvSplits | None
) -> None:
    """Raise UnsupportedError unless kernels of the config can run the problem."""
    check_dtype(config, problem)
    if problem.d_head > config.d_head or problem.d_v > config.d_v:
        raise UnsupportedError(
            f"the kernel config is for d_head up to {config.d_head} and d_v up to {config.d_v}, the"
            f" tensors have {problem.d_head} and {problem.d_v}; pass a config of theirs, or leave"
            " it out"
        )
    if kv_splits is not None and problem.total_q is not None:
        raise UnsupportedError(
            "split_keys is given with cu_seqlens_q, and the keys of packed queries are not split;"
            " leave split_keys out, or pass q with a batch dimension"
        )
    tiles = None
    if kv_splits is not None:
        tiles = kv_splits.num_tiles(problem, 1) * kv_splits.key_blocks
    check_tiles(config, problem, tiles)
