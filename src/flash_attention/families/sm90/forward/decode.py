# SPDX-License-Identifier: Apache-2.0
"""Decoding: which kernel computes few queries, and into how many splits their keys are divided."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from math import ceil

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.problem import Problem
from flash_attention.call.results import E4M3
from flash_attention.families.sm90.forward.config import (
    D_HEADS,
    WARPGROUP_ROWS,
    HopperForwardKernelConfig,
)
from flash_attention.families.sm90.forward.dense_chunk import choose_dense_splits
from flash_attention.families.sm90.forward.heuristic import heuristic, hopper_d_head
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.forward.tiles import MORE_KEYS

BLOCK_KEYS = 64  # pages and splits of a given size are multiples of it
STAGES = 3  # two CTAs fill the shared memory of a multiprocessor at d_head 128
FEW_BLOCKS = 4  # a CTA visits as many in less time than combining partial results takes
SPLITS_OF_A_TILE = 8  # combining more costs more than shorter splits gain
LONG_SPLIT = 16  # blocks; longer splits are worth splitting further
FEW_WAVES = 2  # of tiles; more of them keep all multiprocessors busy most of the time
FEW_LONG_WAVES, LONG = 3.5, 6  # of tiles that visit so many times as many keys as there are queries
WORTH_SPLITTING = 1.5  # by which waves of equal tiles, of which the last is not full, take longer
FEW_KEYS = 1024  # of a chunk; combining takes as long as a tile
FEW_WAVES_8_BIT = 0.25  # products of 8 bits are faster, and FP8 kernels do not split keys
FEW_WAVES_CONVERTED = 16  # keys that are converted take so long that the last tiles are waited for
MOST_TRANSPOSED = 512 << 20
"""The bytes that FP8 kernels transpose V of pages into at most. An engine's cache leaves little
memory."""
TILE_ROWS = 2 * WARPGROUP_ROWS  # of the kernels of chunks
BUSY = 0.9  # the share of the multiprocessors that saturates the memory


def choose_splits(
    problem: Problem, arch: Arch, num_sms: int, split_keys: int | None = None
) -> tuple[HopperForwardKernelConfig, KvSplits] | str:
    """Return the config and the KV splits for decoding, or why another kernel is better.

    Without `split_keys` the keys are split evenly if there are fewer tiles than multiprocessors. If
    sequences differ in length, the device splits them.
    """
    if not hopper_d_head(problem):
        most = max(D_HEADS)
        return (
            f"d_head is {max(problem.d_head, problem.d_v)}, and Hopper kernels have {most} at most"
        )
    if split_keys is not None and problem.total_q is not None:
        return "q is packed (cu_seqlens_q), and its keys are not split every split_keys"
    if why := why_not_decode(problem):
        if split_keys is not None:
            return why
        if not problem.per_batch:
            return choose_dense_splits(problem, arch, num_sms) or why
        chunk = _chunk_config(problem, arch, num_sms)
        return why if chunk is None else (chunk, on_device(chunk, problem, num_sms))
    config = _config(problem)
    if violation := config.broken_rule(arch):
        return violation.message
    if problem.per_batch and split_keys is None:
        return config, on_device(config, problem, num_sms)
    blocks = -(-problem.seq_k // config.B_c)
    least = min(-(-blocks // SPLITS_OF_A_TILE), LONG_SPLIT)
    kv_splits = splits_of(problem, config.B_c, num_sms, split_keys, FEW_BLOCKS, least)
    return kv_splits if isinstance(kv_splits, str) else (config, kv_splits.with_launches(problem))


def why_not_decode(problem: Problem) -> str | None:
    """Return why a problem is not decoding, or None if a warpgroup has room for its queries."""
    if problem.idle:
        return "there is nothing to compute"
    if problem.most_queries:  # tiles of a warpgroup, of which most sequences have one
        return None
    if problem.seq_q * problem.heads_per_kv > WARPGROUP_ROWS:
        group = problem.heads_per_kv
        of_heads = f" of {group} heads that share one of k and v" if group > 1 else ""
        return f"{problem.seq_q} queries{of_heads} do not fit in {WARPGROUP_ROWS} rows"
    return None


class Steps(Enum):
    """The kinds of steps of sequences that differ in length, which different kernels compute."""

    DECODE = "a warpgroup has room for the queries of a sequence that share a head of k and v"
    CHUNK = "tiles are so few that multiprocessors would stand idle, and their keys are many"
    MANY_TILES = "tiles keep all multiprocessors busy"

    @classmethod
    def of(cls, problem: Problem, num_sms: int) -> Steps:
        """Return the kind of a problem that is not idle."""
        if problem.most_queries or problem.seq_q * problem.heads_per_kv <= WARPGROUP_ROWS:
            return cls.DECODE
        keys = problem.seq_k  # that a query sees
        if problem.window is not None:
            keys = min(keys, sum(problem.window) + 1)
        if keys < max(MORE_KEYS * problem.seq_q, FEW_KEYS):
            return cls.MANY_TILES
        if problem.heads_per_kv > WARPGROUP_ROWS:
            return cls.MANY_TILES
        rows = problem.batch * problem.seq_q if problem.total_q is None else problem.total_q
        waves = rows * problem.heads / (num_sms * TILE_ROWS)
        if waves >= _few_waves(problem, keys):
            return cls.MANY_TILES
        # Tiles of one sequence are alike, so that all of a wave end together.
        alike = problem.batch == 1 and ceil(waves) < WORTH_SPLITTING * waves
        return cls.MANY_TILES if alike and not problem.kv_8_bit else cls.CHUNK


def _few_waves(problem: Problem, keys: int) -> float:
    if not problem.kv_8_bit:
        long = problem.batch > 1 and keys >= LONG * problem.seq_q
        return FEW_LONG_WAVES if long else FEW_WAVES
    values = problem.most_sequences * problem.heads_k * problem.seq_k * problem.d_v
    fits = not problem.page_keys or values <= MOST_TRANSPOSED
    products = problem.dtype == E4M3 and not problem.block_descales
    return FEW_WAVES_8_BIT if products and fits else FEW_WAVES_CONVERTED


def _chunk_config(problem: Problem, arch: Arch, num_sms: int) -> HopperForwardKernelConfig | None:
    """Return the config for chunks of queries with few tiles, if their sequences differ in
    length."""
    if problem.idle or Steps.of(problem, num_sms) is not Steps.CHUNK:
        return None
    config = heuristic(problem, arch)
    if isinstance(config, str):
        return None
    return replace(
        config,
        tile_order=TileOrder.ONE_EACH,
        group_mib=0,
        own_output=False,
        direct_output=False,
    )


def without_counter(
    config: HopperForwardKernelConfig, problem: Problem, num_sms: int = 1
) -> KvSplits | None:
    """Return splits on the device where sequences differ in length and no counter hands out their
    tiles."""
    plain = config.specialised and not (config.own_output or config.direct_output)
    if not (plain and config.tile_order is TileOrder.ONE_EACH and problem.per_batch):
        return None
    return on_device(config, problem, num_sms)


def on_device(config: HopperForwardKernelConfig, problem: Problem, num_sms: int) -> KvSplits:
    """Return splits that as many CTAs compute from the lengths as run at a time."""
    return KvSplits.on_device(problem, config.B_c, ctas_on_device(config, problem, num_sms))


def ctas_on_device(config: HopperForwardKernelConfig, problem: Problem, num_sms: int) -> int:
    """Count the CTAs that split keys on the device. For one sequence, one on a multiprocessor is
    faster than two, because there are fewer partial results, unless V is converted."""
    alone = problem.batch == 1 and not config.kv_8_bit
    return num_sms if alone else config.side_by_side * num_sms


def splits_of(
    problem: Problem,
    block_keys: int,
    num_sms: int,
    split_keys: int | None,
    most_whole: int,
    least: int,
) -> KvSplits | str:
    """Return the KV splits of decoding, or why another kernel is better. Up to `most_whole`
    blocks are not split, or twice as many if there is no CTA for each. A split has `least` of them
    or more."""
    if split_keys is not None:
        return KvSplits.of_keys(problem, block_keys, split_keys)
    whole = KvSplits.whole(problem, block_keys)
    if why := _why_whole(problem, whole, num_sms, most_whole):
        # K and V are read once for all heads that share them.
        return whole if problem.heads_per_kv > 1 else f"{why}, and no heads share one of k and v"
    return KvSplits.even(problem, block_keys, num_sms, least).within_tiles()


def _why_whole(problem: Problem, whole: KvSplits, num_sms: int, most_whole: int) -> str | None:
    """Return why the keys should not be split, or None if they should."""
    tiles = whole.num_tiles(problem, consumers=1)
    if tiles >= BUSY * num_sms:
        return f"{tiles} tiles keep {num_sms} multiprocessors busy"
    if whole.key_blocks <= (most_whole if tiles * whole.key_blocks <= num_sms else 2 * most_whole):
        return f"{problem.seq_k} keys are too few to split"
    if problem.window is not None and 2 * (sum(problem.window) + problem.seq_q) < problem.seq_k:
        return "the keys that the window shows lie in few of any splits"
    return None


def _config(problem: Problem) -> HopperForwardKernelConfig:
    config = _converting(problem)
    if not config.q_8_bit or problem.block_descales:
        return config
    scores = replace(config, scores_8_bit=True, stale_max=False, stages=4)
    shorter = replace(scores, stages=2)
    if shorter.side_by_side > scores.side_by_side:
        return shorter
    return scores


def _converting(problem: Problem) -> HopperForwardKernelConfig:
    """Return the config for decoding with products of 16 bits."""
    return HopperForwardKernelConfig(
        dtype=DType.from_string(str(problem.output_dtype)),
        d_head=hopper_d_head(problem),
        consumers=1,
        B_c=BLOCK_KEYS,
        stages=2 if problem.kv_8_bit else STAGES,
        tma=True,
        specialised=True,
        overlap=True,
        rescale_threshold=8,
        stale_max=True,
        kv_8_bit=problem.kv_8_bit,
        q_8_bit=problem.dtype == E4M3,
    )
