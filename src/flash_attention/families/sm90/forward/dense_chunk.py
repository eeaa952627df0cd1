# SPDX-License-Identifier: Apache-2.0
"""Few queries of many keys, all sequences of one length: whether their keys are split."""

from __future__ import annotations

from dataclasses import replace

from flash_attention.arch import Arch
from flash_attention.call.problem import Problem
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.heuristic import ONE_CONSUMER, heuristic
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.forward.tiles import MORE_KEYS, num_tiles

# Microseconds, as they were measured on an H200.
OF_A_COLUMN = 8.6e-5  # for a key that two consumers visit, and each of its columns
LEAST_OF_A_KEY = 9.5e-3  # exponentials take so long with few columns
ONE_OF_FEWER_COLUMNS = 0.8  # of the time of two consumers, for one with up to 240 columns
BESIDE_ANOTHER = 1.1  # of the time of two consumers, for one that shares a multiprocessor
START = 5.0  # of a kernel
COMBINING = 5.0  # another kernel
COMBINING_A_ROW = 1e-3
GAIN = 0.92  # of the time, at most, for splits to be chosen
LEAST_BLOCKS = 3  # of a split


def choose_dense_splits(
    problem: Problem, arch: Arch, num_sms: int
) -> tuple[HopperForwardKernelConfig, KvSplits] | None:
    """Return the config and the KV splits of a problem with few tiles, or None if whole tiles are
    about as fast."""
    if problem.idle or problem.per_batch or problem.page_keys or problem.kv_8_bit:
        return None
    if problem.window is not None or problem.program is not None:  # which show few keys, or may
        return None
    if problem.causal and problem.seq_k < MORE_KEYS * problem.seq_q:
        return None
    whole, two = heuristic(problem, arch), heuristic(problem, arch, consumers=(2,))
    if isinstance(whole, str) or isinstance(two, str):
        return None
    config = replace(
        two,
        tile_order=TileOrder.ONE_EACH,
        group_mib=0,
        own_output=False,
        direct_output=False,
        skip_empty=False,
    )
    even = KvSplits.even(problem, config.B_c, num_sms, LEAST_BLOCKS, consumers=2)
    split = even.within_tiles(longer=1).with_launches(problem)
    if split.blocks >= split.key_blocks:  # each multiprocessor has a tile
        return None
    if not _of_splits(problem, config, split) < GAIN * _of_whole_tiles(problem, whole, num_sms):
        return None
    return config, split


def _of_whole_tiles(problem: Problem, config: HopperForwardKernelConfig, num_sms: int) -> float:
    """Estimate the time without splits."""
    tiles = num_tiles(problem, config.B_r)
    together = config.side_by_side if tiles > num_sms else 1
    height = config.consumers / 2
    if config.consumers == 1:
        alone = ONE_CONSUMER if config.d_head == 256 else ONE_OF_FEWER_COLUMNS
        height = alone if together == 1 else BESIDE_ANOTHER
    waves = -(-tiles // (together * num_sms))
    return START + waves * problem.seq_k * height * _of_a_key(problem)


def _of_splits(problem: Problem, config: HopperForwardKernelConfig, split: KvSplits) -> float:
    """Estimate the time with splits, for which there is a multiprocessor each."""
    keys = split.blocks * config.B_c
    rows = problem.batch * problem.heads * problem.seq_q
    return START + keys * _of_a_key(problem) + COMBINING + rows * COMBINING_A_ROW


def _of_a_key(problem: Problem) -> float:
    return max(LEAST_OF_A_KEY, OF_A_COLUMN * max(problem.d_head, problem.d_v))
