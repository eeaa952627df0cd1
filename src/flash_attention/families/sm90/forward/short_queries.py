# SPDX-License-Identifier: Apache-2.0
"""Split-KV for short queries: when to split the keys, with which kernel, into how many chunks."""

from __future__ import annotations

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.problem import Problem
from flash_attention.call.results import E4M3
from flash_attention.families.sm90.forward.config import WARPGROUP_ROWS, HopperForwardKernelConfig
from flash_attention.families.sm90.forward.heuristic import hopper_d_head
from flash_attention.families.sm90.forward.rules import CHOICES
from flash_attention.families.sm90.forward.splits import Chunks

BLOCK_KEYS = 96  # two CTAs of two stages fill the shared memory of a multiprocessor at d_head 128
PAGE_BLOCK_KEYS = 64  # pages and chunks of a given size are multiples of it
MIN_CHUNK_BLOCKS = 4  # shorter chunks cost more than they gain
BUSY = 0.9  # the share of the multiprocessors that saturates the memory


def choose_chunks(
    problem: Problem, arch: Arch, num_sms: int, split_keys: int | None = None
) -> tuple[HopperForwardKernelConfig, Chunks] | str:
    """Return the config and the chunks for short queries, or why another kernel is better.

    Without `split_keys` the keys are split evenly if there are fewer tiles than multiprocessors.
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
    if not hopper_d_head(problem):
        most = max(CHOICES["d_head"])
        return (
            f"d_head is {max(problem.d_head, problem.d_v)}, and Hopper kernels have {most} at most"
        )
    small = problem.page_keys or problem.kv_8_bit or split_keys is not None
    keys = PAGE_BLOCK_KEYS if small else BLOCK_KEYS
    config = _config(problem, keys)
    if violation := config.broken_rule(arch):
        return violation.message
    if split_keys is not None:
        return config, Chunks.of_keys(problem, config.B_c, split_keys).with_launches(problem)
    whole = Chunks.whole(problem, config.B_c)
    if why := _why_whole(problem, whole, num_sms):
        if problem.heads_per_kv > 1:  # K and V are read once for all heads that share them
            return config, whole
        return f"{why}, and no heads share one of k and v"
    chunks = Chunks.for_ctas(problem, config.B_c, num_sms, MIN_CHUNK_BLOCKS)
    return config, chunks.with_launches(problem)


def _why_whole(problem: Problem, whole: Chunks, num_sms: int) -> str | None:
    """Return why the keys should not be split, or None if they should."""
    tiles = whole.num_tiles(problem, consumers=1)
    if tiles >= BUSY * num_sms:
        return f"{tiles} tiles keep {num_sms} multiprocessors busy"
    if whole.key_blocks <= MIN_CHUNK_BLOCKS:
        return f"{problem.seq_k} keys are too few to split"
    if problem.window is not None and 2 * (sum(problem.window) + problem.seq_q) < problem.seq_k:
        return "the keys that the window shows lie in few of any chunks"
    return None


def _config(problem: Problem, keys: int) -> HopperForwardKernelConfig:
    return HopperForwardKernelConfig(
        dtype=DType.from_string(str(problem.output_dtype)),
        d_head=hopper_d_head(problem),
        consumers=1,
        B_c=keys,
        stages=2 if keys == BLOCK_KEYS or problem.kv_8_bit else 3,
        tma=True,
        specialised=True,
        overlap=True,
        rescale_threshold=8,
        watch_sums=True,
        kv_8_bit=problem.kv_8_bit,
        q_8_bit=problem.dtype == E4M3,
    )
