# SPDX-License-Identifier: Apache-2.0
"""The heuristic of the Hopper kernels: rules of thumb that were measured on an H200."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.problem import Problem
from flash_attention.call.results import E4M3
from flash_attention.families.config import changed
from flash_attention.families.sm90.forward.bias import has_bias, with_room
from flash_attention.families.sm90.forward.config import (
    D_HEADS,
    WARP_ROWS,
    WARPGROUP_ROWS,
    HopperForwardKernelConfig,
)
from flash_attention.families.sm90.forward.room import changes_scores, spills
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.forward.tiles import (
    LONGEST,
    MORE_KEYS,
    SHORT,
    SMS,
    begins_within_sectors,
    narrow_keys,
    num_tiles,
    shares_tiles,
    tile_of,
)
from flash_attention.families.values import smallest_holding

MIB = 1 << 20
HELD_MIB = 50  # of K and V that stay in L2
FEW_TILES = 256  # of two consumers, which fill an H200 twice at most: smaller ones are more even
ONE_CONSUMER = 0.62  # of the time of two, with 256 columns
PACKED_GROUP_MIB, WIDE_PACKED_GROUP_MIB = 32, 256  # up to d_head 192, and with more columns
"""For packed sequences. The kernel does not depend on their lengths."""
FEW_PACKED_TILES = 300  # of two consumers, with 256 columns: smaller ones are more even
SHORT_WINDOW = 256  # keys
FEW_ROWS = 128  # of a sequence, whose loads take longer than its products
SHORT_CAUSAL = 256  # rows of a sequence
PACKED_WAVES = {96: 3.25, 112: 2.5, 128: 4.0}
"""By d_head, the waves of tiles from which on three consumers are faster for packed sequences."""
SHORT_DOCUMENT, WIDEST_DOCUMENT = 512, 192  # the longest sequence, and d_head
NEEDS_HOPPER = "Hopper kernels need sm_90 (H100, H200)"
NEEDS_HOPPER_8_BIT = f"{NEEDS_HOPPER}, and no others read 8 bits: convert them to torch.bfloat16"
ANY_CONSUMERS = (1, 2, 3)


def heuristic(
    problem: Problem, arch: Arch, consumers: tuple[int, ...] = ANY_CONSUMERS
) -> HopperForwardKernelConfig | str:
    """Return the config for a problem, or why there is none. Sequences of one length have tiles
    with one of these numbers of consumers."""
    if problem.batch_invariant:
        return _invariant(problem, arch)
    config = _config(problem, consumers)
    if config is not None and problem.kv_8_bit:
        config = _for_8_bits(config, problem.dtype == E4M3)
    if config is None:
        return f"Hopper kernels have head dimensions up to {max(D_HEADS)}"
    if _has_short_window(problem):
        config = _side_by_side(config)
    if has_short_documents(problem):
        config = replace(_side_by_side(config), prefetch_q=False)
    if problem.page_keys:
        config = _for_pages(config, problem.page_keys)
        if WARP_ROWS % max(problem.heads_per_kv, 1):  # for heads that share tiles
            config = replace(config, own_output=False, direct_output=True)
    if has_bias(problem):
        config = with_room(config)
    violation = config.broken_rule(arch)
    if violation is None:
        return config
    if violation.rule != "architecture":
        return violation.message
    return NEEDS_HOPPER_8_BIT if problem.kv_8_bit else NEEDS_HOPPER


def _invariant(problem: Problem, arch: Arch) -> HopperForwardKernelConfig | str:
    """Return one config for all lengths, whose rows do not depend on each other.

    Every block updates the row maxima, because a threshold would be decided for all rows of a warp
    together. Key blocks have 2^n keys, so that pages of 2^n keys do not change them.
    """
    dense: dict[str, Any] = {"total_q": None, "total_k": None, "seqused_k": True}
    long = replace(problem, seq_q=2 * SHORT, seq_k=2 * SHORT, **dense, batch_invariant=False)
    if problem.window is not None:
        long = replace(long, window=(SHORT_WINDOW, SHORT_WINDOW))
    config = heuristic(long, arch)
    if isinstance(config, str):
        return config
    keys = 1 << config.B_c.bit_length() - 1
    return replace(
        config,
        B_c=keys,
        narrow_keys=min(config.narrow_keys, keys // 2),
        rescale_threshold=0,
        stale_max=False,
    )


def hopper_d_head(problem: Problem) -> int:
    """Return the smallest d_head of the Hopper kernels that fits the problem, or 0."""
    return smallest_holding(D_HEADS, problem.d_head, problem.d_v)


def _config(
    problem: Problem, allowed: tuple[int, ...] = ANY_CONSUMERS
) -> HopperForwardKernelConfig | None:
    dtype, d_head = DType.from_string(str(problem.output_dtype)), hopper_d_head(problem)
    if not d_head:
        return None
    causal = _has_mask(problem)
    uneven = causal or problem.per_batch  # tiles differ in length
    wide = _has_wide_panels(problem, d_head)
    few_keys = problem.seq_k <= SHORT and not uneven
    chosen = _measured(problem, d_head, allowed, causal, wide)
    if chosen is None:
        chosen = _by_width(problem, d_head, causal, wide, 1 in allowed)
    keys = chosen["B_c"]
    narrow = keys // 2 // 16 * 16 if uneven else 0  # on average the last keys fill half a block
    if few_keys:
        narrow = narrow_keys(problem.seq_k, keys)
    skip = few_keys and problem.seq_q <= SHORT and d_head > 64 and not shares_tiles(problem)
    options = {
        **_common(problem, causal),
        "tile_order": _tile_order(problem, d_head, uneven, wide, chosen["consumers"]),
        "wide_panels": wide,
        "skip_empty": skip and has_empty_consumers(problem.seq_q, chosen["consumers"]),
        "narrow_keys": narrow,
        **chosen,
    }
    packed = problem.total_q is not None and problem.total_k is not None
    own = chosen.get("own_output", False) and not (packed and d_head <= 96)
    output = {"own_output": own, "direct_output": not own and _may_be_direct(problem, d_head)}
    return HopperForwardKernelConfig(dtype, d_head, **{**options, **output})


def _may_be_direct(problem: Problem, d_head: int) -> bool:
    """Whether O that has no buffer leaves from registers and not over Q, so that the next Q loads
    early."""
    if d_head <= 192:
        return not problem.kv_8_bit
    of_one_length = not problem.per_batch or problem.total_q is not None
    return d_head == 256 and problem.seq_k <= 2 * SHORT and of_one_length


def counts_waves(problem: Problem) -> bool:
    """Whether the heuristic compares tiles of several heights by the waves that they take."""
    causal = _has_mask(problem)
    d_head = hopper_d_head(problem)
    wide = _has_wide_panels(problem, d_head)
    return _measured(problem, d_head, ANY_CONSUMERS, causal, wide) is not None


def _measured(
    problem: Problem, d_head: int, allowed: tuple[int, ...], causal: bool, wide: bool
) -> dict[str, Any] | None:
    """Return the fields of the fastest of the tiles that were measured, if some were."""
    if problem.per_batch or problem.window is not None or problem.program is not None:
        return None
    fit = tuple(n for n in allowed if n < 3 or not spills(problem, d_head))
    tile = tile_of(problem, d_head, fit, causal=causal, wide=wide)
    if tile is None:
        return None
    few_keys = problem.seq_k <= SHORT and not causal
    return {
        **_of_tile(tile.consumers, tile.keys, tile.stages),
        "ping_pong": tile.consumers > 1,
        "own_output": tile.own_output,
        "stale_max": True,
        "prefetch_q": few_keys or _prefetches(problem, d_head, tile.consumers, causal),
    }


def _prefetches(problem: Problem, d_head: int, consumers: int, causal: bool) -> bool:
    """Whether the next Q is prefetched. Under a causal mask that was measured to be slower for
    short sequences, unless heads share K and V."""
    if causal and problem.seq_q <= SHORT_CAUSAL and 64 < d_head <= 128 and consumers == 2:
        return d_head > 96 and problem.heads_per_kv > 1
    return d_head <= 96 or (consumers == 3 and d_head <= 128)


def _by_width(
    problem: Problem, d_head: int, causal: bool, wide: bool, may_be_one: bool
) -> dict[str, Any]:
    """Return the fields of the config that suits a head dimension at most lengths."""
    short, uneven = problem.seq_q <= SHORT, causal or problem.per_batch
    stale: dict[str, Any] = {"ping_pong": True, "stale_max": True}
    if has_many_rows(problem):
        keys = 64 if d_head > 112 else 80
        return {**_of_tile(3, keys, 3), **stale, "own_output": True, "prefetch_q": True}
    if d_head <= 96:
        of_one_length = problem.total_q is None
        three = d_head <= 80 and not (causal and problem.per_batch)
        three = three and not (short and (causal or (problem.per_batch and of_one_length)))
        three = three and not (spills(problem, d_head) or _empty_rows(problem.seq_q))
        stale |= {"own_output": not (wide and three), "prefetch_q": True}  # without room for both
        fewer = d_head > 64 or (changes_scores(problem) and not has_bias(problem))
        keys = 96 if three and fewer else 128  # more would spill
        return {**_of_tile(3 if three else 2, keys, 2 if wide and not three else 3), **stale}
    if d_head <= 128:
        few_keys = problem.seq_k <= SHORT and not uneven
        return {**_of_tile(2, 128, 2), **stale, "own_output": True, "prefetch_q": few_keys}
    if d_head <= 160:
        return {**_of_tile(2, 112 if wide else 128, 2), **stale}
    one = may_be_one and causal and not problem.per_batch and _few_tiles(problem)
    if d_head <= 192:
        if one and num_tiles(problem, 2 * WARPGROUP_ROWS) <= SMS:
            return {**_of_tile(1, 64, 2), "stale_max": True}
        if causal and problem.seq_k <= SHORT and not problem.per_batch:
            return {**_of_tile(2, 80, 2), **stale, "narrow_keys": 48}
        return {**_of_tile(2, 112, 2), **stale, "narrow_keys": 64}
    keys = 80 if d_head <= 224 and not wide else 64
    consumers = 1 if (one and d_head == 256) or has_few_tiles(problem) else 2
    return {
        **_of_tile(consumers, keys, 2),
        "ping_pong": consumers > 1,
        "stale_max": causal,
        "prefetch_q": not (causal and short),
    }


def _has_wide_panels(problem: Problem, d_head: int) -> bool:
    return begins_within_sectors(problem) and d_head > 64 and d_head % 64 in (16, 32)


def _of_tile(consumers: int, keys: int, stages: int) -> dict[str, Any]:
    return {"consumers": consumers, "B_c": keys, "stages": stages}


def _common(problem: Problem, causal: bool) -> dict[str, Any]:
    """Return what the configs of all head dimensions have."""
    group = group_mib(problem)
    if problem.per_batch:
        group = PACKED_GROUP_MIB if hopper_d_head(problem) <= 192 else WIDE_PACKED_GROUP_MIB
    return {
        "tma": True,
        "specialised": True,
        "overlap": True,
        "rescale_threshold": 8,
        "group_mib": group if causal else 0,
    }


def _tile_order(
    problem: Problem, d_head: int, uneven: bool, wide: bool, consumers: int
) -> TileOrder:
    """Return which CTA computes which tile. CTAs that take every n-th one end later where tiles are
    `uneven`, and where the last of a few tiles of a head is, because some CTAs have more of these.
    They also do where memory is the limit: with rows that begin within a sector, and with one short
    tile a head."""
    rows = consumers * WARPGROUP_ROWS
    rest = problem.seq_q % rows
    if shares_tiles(problem):
        rest = 0
    last_is_shorter = 0 < rest < problem.seq_q <= LONGEST and (d_head > 128 or 2 * rest <= rows)
    memory_bound = wide or (problem.seq_q <= FEW_ROWS and 96 < d_head <= 192)
    takes_next = uneven or (d_head > 64 and (last_is_shorter or memory_bound))
    return TileOrder.DYNAMIC if takes_next else TileOrder.PERSISTENT


def _few_tiles(problem: Problem) -> bool:
    """Whether tiles of one consumer are faster than those of two, because they are more even or
    take less than twice as many waves."""
    tiles = num_tiles(problem, 2 * WARPGROUP_ROWS)
    if problem.seq_k < MORE_KEYS * problem.seq_q:
        return tiles <= FEW_TILES
    waves = [-(-num_tiles(problem, n * WARPGROUP_ROWS) // SMS) for n in (1, 2)]
    return tiles <= FEW_TILES and waves[0] * ONE_CONSUMER < waves[1]


def _for_8_bits(
    config: HopperForwardKernelConfig, q_8_bit: bool
) -> HopperForwardKernelConfig | None:
    """Return the config for k and v of 8 bits, with fewer keys if those of 16 bits and of 8 do not
    both fit."""
    consumers = min(config.consumers, 2)
    for keys in range(config.B_c, 0, -16):
        smaller = changed(
            config,
            consumers=consumers,
            B_c=keys,
            narrow_keys=min(config.narrow_keys, keys // 2 // 16 * 16),
            own_output=False,
            kv_8_bit=True,
            q_8_bit=q_8_bit,
        )
        if smaller is not None:
            return smaller
    return None


def has_empty_consumers(rows: int, consumers: int) -> bool:
    """Whether some consumers of the last tile have no query."""
    return -(-rows // WARPGROUP_ROWS) % consumers > 0


def _has_mask(problem: Problem) -> bool:
    """Whether some queries do not see all keys."""
    return problem.causal or problem.window is not None or problem.has_mask_function


def _empty_rows(rows: int) -> bool:
    """Whether tiles of three consumers have over a third more rows than those of two."""
    of_three, of_two = (-(-rows // tile) * tile for tile in (192, 128))
    return 3 * of_three > 4 * of_two


def _has_short_window(problem: Problem) -> bool:
    """Whether tiles of an engine's step visit two or three key blocks. A tile then waits for its
    first keys most of the time."""
    if problem.window is None or sum(problem.window) >= SHORT_WINDOW:
        return False
    plain = not problem.kv_8_bit and problem.program is None
    return plain and problem.page_keys > 0 and hopper_d_head(problem) <= 64


def has_short_documents(problem: Problem) -> bool:
    """Whether packed sequences are so short that higher tiles would have many rows of nobody."""
    if problem.total_q is None or max(problem.seq_q, problem.seq_k) > SHORT_DOCUMENT:
        return False
    plain = not (problem.kv_8_bit or problem.page_keys) and problem.program is None
    return plain and hopper_d_head(problem) <= WIDEST_DOCUMENT


def has_many_rows(problem: Problem) -> bool:
    """Whether packed sequences without a mask have enough rows for tiles of three consumers."""
    if problem.total_q is None or _has_mask(problem):
        return False
    d_head = hopper_d_head(problem)
    least = PACKED_WAVES.get(d_head)
    if least is None or spills(problem, d_head):
        return False
    waves = problem.num_tiles(3 * WARPGROUP_ROWS) / SMS
    return waves >= least and (d_head <= 112 or problem.seq_q <= 2 * LONGEST)


def has_few_tiles(problem: Problem) -> bool:
    """Whether packed sequences under a mask have so few tiles of 256 columns that smaller ones are
    faster, because they are more even."""
    packed = problem.total_q is not None and problem.total_k is not None and _has_mask(problem)
    wide = packed and hopper_d_head(problem) == 256 and not problem.kv_8_bit
    return wide and problem.num_tiles(2 * WARPGROUP_ROWS) <= FEW_PACKED_TILES


def _side_by_side(config: HopperForwardKernelConfig) -> HopperForwardKernelConfig:
    """Return the config with tiles of one warpgroup, of which a multiprocessor has two: one
    computes while the other waits."""
    buffered = config.d_head <= 128  # with more columns two such CTAs have no room for O
    return replace(
        config,
        consumers=1,
        B_c=64 if config.d_head <= 160 else 48,
        stages=2,
        narrow_keys=32 if config.d_head <= 160 else 16,
        ping_pong=False,
        own_output=buffered,
        direct_output=not buffered,
    )


def _for_pages(config: HopperForwardKernelConfig, page_keys: int) -> HopperForwardKernelConfig:
    """Return the config with the key blocks that have larger boxes in common with pages."""
    even = min(1 << config.B_c.bit_length() - 1, 64)
    shared = gcd(page_keys, config.B_c)
    if shared == min(page_keys, config.B_c) or shared >= gcd(page_keys, even):
        return config
    return replace(config, B_c=even, narrow_keys=min(config.narrow_keys, even // 2))


def group_mib(problem: Problem) -> int:
    """Return the MiB of K and V of the heads whose tiles run together: all heads if L2 holds them.
    Otherwise there are enough tiles to balance the load at the end, and few enough for L2."""
    of_a_head = problem.seq_k * hopper_d_head(problem) * 2 * problem.dtype.itemsize
    if problem.batch * problem.heads_k * of_a_head <= HELD_MIB * MIB:
        every = -(-problem.batch * problem.heads * of_a_head // MIB)
        return min(max(1 << (every - 1).bit_length(), 4), 256)
    heads = 32 if problem.seq_k <= 2 * SHORT else 16 if problem.seq_k <= 8 * SHORT else 8
    if problem.d_head <= 64:
        heads *= 2
    size = heads * problem.seq_k * problem.d_head * 2 * problem.dtype.itemsize
    nearly = size * 8 // 7  # seven eighths of a power of two count as that
    return min(max(1 << round(nearly / MIB).bit_length() - 1, 4), 256) if size >= MIB else 4
