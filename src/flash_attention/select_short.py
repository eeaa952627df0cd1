# SPDX-License-Identifier: Apache-2.0
"""Short queries: when their keys are visited in chunks, by which kernel, and in how many."""

from __future__ import annotations

from flash_attention.arch import Arch
from flash_attention.chunks import Chunks
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig
from flash_attention.kernel_configs.hopper_forward import WARPGROUP_ROWS
from flash_attention.problem import Problem
from flash_attention.select import hopper_d_head

BLOCK_KEYS = 64  # two CTAs of one consumer then fit on a multiprocessor, up to d_head 128
MIN_CHUNK_BLOCKS = 4  # a shorter chunk costs more than it brings


def select_chunks(
    problem: Problem, arch: Arch, num_sms: int, split_keys: int | None = None
) -> tuple[HopperForwardKernelConfig, Chunks] | None:
    """The config and the chunks for few queries, None where another kernel is to be selected."""
    chosen = chunks_or_why_not(problem, arch, num_sms, split_keys)
    return None if isinstance(chosen, str) else chosen


def chunks_or_why_not(
    problem: Problem, arch: Arch, num_sms: int, split_keys: int | None = None
) -> tuple[HopperForwardKernelConfig, Chunks] | str:
    """The config and the chunks for few queries, or why another kernel is to be selected.

    Without `split_keys` there are as many chunks as give every multiprocessor a tile or two.
    """
    rows = problem.seq_q * problem.heads_per_kv
    if problem.total_q is not None:
        return "q is packed (cu_seqlens_q), and the keys of packed queries are not split"
    if problem.idle:
        return "there is nothing to compute"
    if rows > WARPGROUP_ROWS:
        group = problem.heads_per_kv
        of_heads = f" of {group} heads that share one of k and v" if group > 1 else ""
        return f"{problem.seq_q} queries{of_heads} do not fit in {WARPGROUP_ROWS} rows"
    config = _config(problem)
    if violation := config.broken_rule(arch):
        return violation.message
    if split_keys is not None:
        return config, Chunks.of_keys(problem, config.B_c, split_keys)
    tiles = problem.batch * problem.heads_k
    if tiles >= num_sms:  # K and V are read once for all heads that share them
        if problem.heads_per_kv > 1:
            return config, _whole(problem)
        return f"{tiles} tiles fill {num_sms} multiprocessors, and no heads share one of k and v"
    chunks = _chunks(problem, -(-num_sms // tiles))
    if chunks.count == 1:
        return f"{problem.seq_k} keys make one chunk"
    return config, chunks


def _config(problem: Problem) -> HopperForwardKernelConfig:
    return HopperForwardKernelConfig(
        dtype=DType.from_string(str(problem.dtype)),
        d_head=hopper_d_head(problem),
        consumers=1,
        B_c=BLOCK_KEYS,
        stages=2,
        tma=True,
        specialised=True,
        overlap=True,
        rescale_threshold=8,
        watch_sums=True,
    )


def _whole(problem: Problem) -> Chunks:
    return Chunks.of(problem, BLOCK_KEYS, problem.seq_k)


def _chunks(problem: Problem, count: int) -> Chunks:
    """About so many chunks; a window that hides most keys lies in few of any, and gets one."""
    if problem.window is not None:
        seen = sum(problem.window) + problem.seq_q
        if 2 * seen < problem.seq_k:
            return _whole(problem)
    blocks = -(-problem.seq_k // BLOCK_KEYS)
    return Chunks.of(problem, BLOCK_KEYS, max(MIN_CHUNK_BLOCKS, -(-blocks // count)))
