# SPDX-License-Identifier: Apache-2.0
"""Tiles of sequences of one length: how many rows, by those that the last tile wastes and by the
waves that all of them take on an H200."""

from __future__ import annotations

from typing import NamedTuple

from flash_attention.call.problem import Problem
from flash_attention.families.sm90.forward.config import (
    WARP_ROWS,
    WARPGROUP_ROWS,
    HopperForwardKernelConfig,
)

SMS = 132
SHORT = 1024  # rows of Q up to which the ends of tiles cost more than their key blocks
LONGEST = 2048  # rows of Q
ALONE = 1.25  # times as long takes a row of one consumer that has a multiprocessor to itself
SHARING_ROWS = 512  # of Q up to which heads may share tiles
SHARING_GAIN = 0.85  # of the rows, at most, for them to do so
FEWEST_CAUSAL = 256  # rows of Q above which heads share tiles under a causal mask
MOST_CAUSAL = 3072  # where they only do so up to a length
MORE_KEYS = 2  # for each query; with fewer, tiles of a causal mask differ much
LAST_TILE = 0.5  # of an uneven tile, for which others wait at the end; counted over d_head 64
NARROW_STEP = 32  # few widths of the last keys, and so few kernels for all lengths
SIDE_BY_SIDE_KEYS = (128, 112, 96)  # with which two CTAs of 64 rows and columns fit


class Tile(NamedTuple):
    """The tile of a config, and the time of a row as a multiple of that of three consumers."""

    consumers: int
    keys: int
    stages: int
    weight: float = 1.0
    own_output: bool = True


def tile_of(
    problem: Problem, d_head: int, consumers: tuple[int, ...], *, causal: bool, wide: bool
) -> Tile | None:
    """Return the tile with one of these numbers of consumers that takes the least time, or None if
    none was measured. `causal` stands for all masks, `wide` for panels of 64 columns."""
    even = not causal or (problem.causal and problem.seq_k >= MORE_KEYS * problem.seq_q)
    return min(
        (t for t in _tiles(problem, d_head, causal, wide) if t.consumers in consumers),
        key=lambda tile: (_rows_in_turn(problem, tile, even) * tile.weight, -tile.consumers),
        default=None,
    )


def _tiles(problem: Problem, d_head: int, causal: bool, wide: bool) -> list[Tile]:
    """Return what was measured at the head dimension, up to LONGEST rows or for all lengths."""
    long = problem.seq_q > LONGEST
    if d_head <= 64:
        few = problem.seq_k <= 3 * WARPGROUP_ROWS
        beside = 128 if causal else min(SIDE_BY_SIDE_KEYS, key=lambda n: cost(problem.seq_k, n))
        ones = [Tile(1, beside, 2, 1.15 if causal else 1.17)]
        if begins_within_sectors(problem) or problem.seq_q > SHORT:
            ones = []
        return [*ones, Tile(2, 128, 3, 1.09 if causal else 1.2), Tile(3, 96 if few else 128, 3)]
    if d_head <= 80 and wide:
        return [Tile(2, 128, 2, 1.05 if causal else 1.35), Tile(3, 96, 3, own_output=False)]
    if d_head <= 80:
        return [Tile(2, 128, 3, 1.05 if causal else 1.1), Tile(3, 96, 3)]
    if causal and long:
        return []
    if d_head <= 96 and wide:
        return [Tile(2, 128, 2, 1.045 if causal else 1.2), Tile(3, 80, 3)]
    if d_head <= 96:
        return [Tile(2, 128, 3, 1.045 if causal else 1.1), Tile(3, 96, 3)]
    if d_head <= 112:
        two = Tile(2, 128, 2, 1.045 if causal else 1.15)
        return [Tile(1, 80, 2, 1.4), two, Tile(3, 64 if causal else 80, 3)]
    if d_head <= 128 and not long:
        two = Tile(2, 128, 2, 1.045 if causal else 1.06)
        return [Tile(1, 80, 2, 1.25), two, Tile(3, 64 if causal else 80, 3)]
    if 128 < d_head <= 160 and causal and not wide:
        two = Tile(2, 128, 2, 1.045, own_output=False)
        return [Tile(1, 64, 2, 1.3, own_output=False), two, Tile(3, 64, 2)]
    return []


def _rows_in_turn(problem: Problem, tile: Tile, even: bool) -> float:
    """Return the rows, also those without a query, that a multiprocessor computes one after the
    other. Where tiles are not `even`, short ones come last and fill the gaps."""
    rows = tile.consumers * WARPGROUP_ROWS
    together = 2 if tile.consumers == 1 else 1
    tiles = num_tiles(problem, rows)
    if tiles <= SMS:
        return rows * (ALONE if together > 1 else 1)
    if even:
        return -(-tiles // (together * SMS)) * together * rows
    waited = LAST_TILE if max(problem.d_head, problem.d_v) > 64 else 0
    return (tiles / SMS + waited) * rows


def shares_tiles(problem: Problem) -> bool:
    """Whether the rows of heads that share a head of k and v are tiles together: where the last
    tile of each head would have many rows of nobody, and under a causal mask where tiles of more
    heads and fewer queries were measured to be faster."""
    group = problem.heads_per_kv
    plain = not (problem.idle or problem.per_batch or problem.page_keys or problem.kv_8_bit)
    one_head = problem.dropout_p > 0 or problem.return_max or problem.program is not None
    if not plain or one_head or problem.batch_invariant or group < 2 or WARP_ROWS % group:
        return False
    d_head = max(problem.d_head, problem.d_v)
    if problem.seq_q <= SHARING_ROWS and _rows(problem, d_head, group) < SHARING_GAIN:
        return True
    if not problem.causal or problem.window is not None or problem.seq_q <= FEWEST_CAUSAL:
        return False
    if 80 < d_head <= 128 or d_head > 192:
        return group >= 8 and problem.seq_q <= MOST_CAUSAL
    return group >= 4


def _rows(problem: Problem, d_head: int, group: int) -> float:
    """Return the rows of tiles that `group` heads share, also of nobody, as a share of those of
    tiles of one head, whatever the height of the former."""
    heights = [consumers * WARPGROUP_ROWS for consumers in ((2, 3) if d_head <= 128 else (2,))]
    together = max(-(-problem.seq_q * group // rows) * rows for rows in heights)
    return together / (group * min(-(-problem.seq_q // rows) * rows for rows in heights))


def num_tiles(problem: Problem, rows: int) -> int:
    """Count the tiles of `rows` rows, which heads may share."""
    if not shares_tiles(problem):
        return problem.num_tiles(rows)
    return problem.batch * problem.heads_k * -(-problem.seq_q * problem.heads_per_kv // rows)


def begins_within_sectors(problem: Problem) -> bool:
    """Whether rows of heads may begin within a sector of 32 bytes. The parts of a row that lie in
    different panels then read the sectors between them twice, so that wide panels are faster."""
    return problem.d_head % 16 > 0 or problem.d_v % 16 > 0


def narrow_keys(keys: int, block: int) -> int:
    """Return how wide the block after the last whole one is, or 0 if it is over half full."""
    rest = keys % block
    return -(-rest // NARROW_STEP) * NARROW_STEP if rest <= block // 2 else 0


def cost(keys: int, block: int) -> tuple[int, bool]:
    """Return how many keys a row is multiplied with, also beyond the last, and whether there is a
    narrow block, which does not overlap with the next."""
    narrow = narrow_keys(keys, block)
    return keys // block * block + (narrow or block * (keys % block > 0)), narrow > 0


def padded(problem: Problem, config: HopperForwardKernelConfig) -> int:
    """Return the scores of a head, also those of rows and keys beyond the last. Tiles of a causal
    mask end where their rows do."""
    together = problem.heads_per_kv if shares_tiles(problem) else 1
    rows = -(-problem.seq_q * together // config.B_r) * config.B_r // together
    if problem.causal:
        return rows
    whole, rest = divmod(problem.seq_k, config.B_c)
    last = config.narrow_keys if rest <= config.narrow_keys else config.B_c
    return rows * (whole * config.B_c + (last if rest else 0))
