# SPDX-License-Identifier: Apache-2.0
"""Into how many splits the heads of q that share a head of k go.

A tile of keys visits the queries of all heads that share them, so grouped heads make few, long
tiles. Where these do not fill the GPU evenly, each tile has a split of the heads. Where tiles add
dQ up in any order, they add their dK and dV to one sum, too; else a kernel adds the splits up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from heapq import heapreplace

from flash_attention.call.backward_call import BackwardProblem
from flash_attention.families.backward_steps import split_scratch
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.parts import Part, Parts

SM_FLOP_PER_US = 4.2e6  # of one multiprocessor that has nothing to wait for
SUM_BYTES_PER_US = 4e6  # of sums of dK and dV that are cleared, stored or added to, and read
TILE_BLOCKS = 1  # the time of which a tile takes to begin and to end
UNEVEN = 8  # tiles as long as an even share of the work take 9 % more time than that
SPLIT_COST = 1.02  # of the main kernel, with splits: as many times more tiles begin and end
PACKED_SPLIT_COST = 1.1  # the same of packed sequences, as measured
LAUNCH_US = 1.0  # of the kernel that adds the splits up, which may convert dQ as well
DRIFT = {64: 0.0125, 128: 0.035}  # of its time that each head of a tile adds, by d_head
DRIFT_ROWS = 2048  # with more rows it falls in proportion
SHORT_GROUPS = 4  # kShortGroups of sm90/backward/work.cuh
MOST_TILES = 16  # of a multiprocessor, whose time is found tile by tile


def head_splits(
    problem: BackwardProblem,
    config: HopperBackwardKernelConfig,
    work: Parts,
    num_sms: int,
    most_bytes: int,
) -> int:
    """Return the number of splits that is expected to take the least time, of those with equally
    many heads but for one split, and whose sums take at most so many bytes."""
    group = problem.heads_per_kv
    if group == 1:
        return 1
    choices = [
        splits
        for splits in sorted({-(-group // heads) for heads in range(1, group)})
        if _sum_bytes(problem, config, splits) <= most_bytes
    ]
    alike = Counter(replace(part, part_head=0) for part in work.parts)
    return min(
        (1, *choices), key=lambda splits: _expected_us(problem, config, alike, num_sms, splits)
    )


def _expected_us(
    problem: BackwardProblem,
    config: HopperBackwardKernelConfig,
    parts: Counter[Part],
    num_sms: int,
    splits: int,
) -> float:
    """Estimate the time of the main kernel and of adding up."""
    blocks = 0.0
    for part, count in parts.items():
        tiles = part.part_heads * splits * _key_blocks(problem, config, part)
        found = _longest_sm if _lengths_are_known(problem, tiles, num_sms) else _longest_sm_of_many
        blocks += count * found(problem, config, part, splits, num_sms)
    main = blocks * 10 * config.B_r * config.B_c * config.d_head / SM_FLOP_PER_US
    main *= 1 + _drift(problem, config) * -(-problem.heads_per_kv // splits)
    if splits == 1:
        return main
    sums = num_key_sums(config, splits)
    times = 2 * sums + (splits if sums < splits else 0)  # each is stored or cleared, and read
    moved = times * _sum_bytes(problem, config, splits) / sums
    cost = SPLIT_COST if problem.total_k is None else PACKED_SPLIT_COST
    return cost * main + LAUNCH_US + moved / SUM_BYTES_PER_US


def num_key_sums(config: HopperBackwardKernelConfig, splits: int) -> int:
    """Return the sums of dK, and of dV: none without splits, one that all tiles add to where they
    add dQ too, else one for each split."""
    if splits == 1:
        return 0
    return 1 if config.adds_dq else splits


def _sum_bytes(problem: BackwardProblem, config: HopperBackwardKernelConfig, splits: int) -> int:
    return sum(split_scratch(problem, config.d_head, num_key_sums(config, splits)).values())


def _drift(problem: BackwardProblem, config: HopperBackwardKernelConfig) -> float:
    """Return what part of its time each head of a tile adds. Under a causal mask tiles differ in
    length, so that those of one head of k are at different heads of q: rows of q and dQ that one of
    them has read leave L2 before the next comes."""
    if not problem.causal or problem.window is not None:
        return 0.0
    return DRIFT.get(config.d_head, 0.0) * min(1.0, DRIFT_ROWS / max(1, problem.seq_q))


def _lengths_are_known(problem: BackwardProblem, tiles: float, num_sms: int) -> bool:
    return not problem.per_batch and tiles <= MOST_TILES * num_sms


def _longest_sm(
    problem: BackwardProblem,
    config: HopperBackwardKernelConfig,
    part: Part,
    splits: int,
    num_sms: int,
) -> float:
    """Return the blocks of the multiprocessor that ends last, if each takes the next tile when it
    is done."""
    ends = [0.0] * num_sms
    for blocks in _tiles(problem, config, part, splits):
        heapreplace(ends, ends[0] + blocks + TILE_BLOCKS)
    return max(ends)


def _tiles(
    problem: BackwardProblem, config: HopperBackwardKernelConfig, part: Part, splits: int
) -> Iterator[int]:
    """Yield the blocks of the tiles of a part in their order: groups of heads, or of splits of
    heads, and in a group the first keys first."""
    group = problem.heads_per_kv
    heads_of = [(i + 1) * group // splits - i * group // splits for i in range(splits)]
    sides = part.part_heads * splits
    firsts = range(part.part_key, part.part_key + part.part_keys, config.B_c)
    blocks_of = [-(-_rows_that_see(problem, config, first) // config.B_r) for first in firsts]
    for blocks, most in _phases(problem, config, blocks_of):
        side_by_side = -(-sides // -(-sides // max(1, most)))
        for first in range(0, sides, side_by_side):
            heads = [heads_of[i % splits] for i in range(first, min(first + side_by_side, sides))]
            yield from (seen * count for seen in blocks for count in heads)


def _phases(
    problem: BackwardProblem, config: HopperBackwardKernelConfig, blocks: list[int]
) -> list[tuple[list[int], int]]:
    """Return the blocks of a head's tiles that are computed together, and how many heads run side
    by side, as sm90/backward/work.cuh has them."""
    if not (problem.causal and problem.window is None and config.fills_gaps):
        return [(blocks, config.group_heads)]
    longer = len(blocks) // 2
    most = config.group_heads
    return [(blocks[:longer], most), (blocks[longer:], SHORT_GROUPS * most)]


def _rows_that_see(problem: BackwardProblem, config: HopperBackwardKernelConfig, key: int) -> int:
    """Return how many queries of a head see the keys of a tile."""
    if problem.window is not None:
        return min(problem.seq_q, sum(problem.window) + config.B_c)
    return min(problem.seq_q, max(0, problem.seq_k - key)) if problem.causal else problem.seq_q


def _longest_sm_of_many(
    problem: BackwardProblem,
    config: HopperBackwardKernelConfig,
    part: Part,
    splits: int,
    num_sms: int,
) -> float:
    """Estimate the blocks of the multiprocessor that ends last. The longest tiles come first, so
    that multiprocessors are idle at the end for half of a short tile on average."""
    heads = -(-problem.heads_per_kv // splits)
    longest, shortest = _query_blocks(problem, config, part)
    tiles = part.part_heads * _key_blocks(problem, config, part)
    even = tiles * (problem.heads_per_kv * (longest + shortest) / 2 + splits * TILE_BLOCKS)
    even = even / num_sms + heads * shortest / 2
    longest = heads * _longest(problem, config, longest) + TILE_BLOCKS
    return float((even**UNEVEN + longest**UNEVEN) ** (1 / UNEVEN))


def _key_blocks(problem: BackwardProblem, config: HopperBackwardKernelConfig, part: Part) -> float:
    """Return the tiles of a head in a part. Only the device knows the lengths of packed sequences:
    they are taken to be as long as each other."""
    if problem.total_k is None:
        return -(-part.part_keys // config.B_c)
    share = part.part_keys / max(1, problem.seq_k)
    return max(1.0, share * problem.total_k / problem.batch / config.B_c)


def _query_blocks(
    problem: BackwardProblem, config: HopperBackwardKernelConfig, part: Part
) -> tuple[float, float]:
    """Return how many blocks of a head's queries see the first tile of a part, and the last."""
    rows = _length(problem.seq_q, problem.total_q, problem.batch)
    if problem.window is not None:
        rows = min(rows, sum(problem.window) + config.B_c)
        return rows / config.B_r, rows / config.B_r
    if not problem.causal:
        shortest = rows if problem.total_q is None else problem.total_q / problem.batch / 2
        return rows / config.B_r, shortest / config.B_r
    keys = _length(problem.seq_k, problem.total_k, problem.batch)
    last = part.part_key + max(0, part.part_keys - config.B_c)
    seen = [min(rows, max(0.0, keys - key)) for key in (part.part_key, last)]
    return seen[0] / config.B_r, seen[1] / config.B_r


def _length(longest: int, total: int | None, batch: int) -> float:
    """Return the length of the sequence of a row, on average: of packed sequences half way from
    their mean to the longest, because long ones have more of the rows."""
    return longest if total is None else (total / batch + longest) / 2


def _longest(problem: BackwardProblem, config: HopperBackwardKernelConfig, average: float) -> float:
    """Return the blocks of the longest tile, which a packed sequence of the longest length has."""
    if problem.total_q is None or problem.window is not None:
        return average
    return problem.seq_q / config.B_r
