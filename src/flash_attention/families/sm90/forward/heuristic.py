# SPDX-License-Identifier: Apache-2.0
"""The heuristic of the Hopper kernels: rules of thumb that were measured on an H200."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import gcd
from typing import Any

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.problem import Problem
from flash_attention.call.results import E4M3
from flash_attention.families.config import changed
from flash_attention.families.sm90.forward.config import (
    D_HEADS,
    WARPGROUP_ROWS,
    HopperForwardKernelConfig,
)
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.values import smallest_holding

MIB = 1 << 20
HELD_MIB = 50  # of K and V that stay in L2
FEW_TILES = 256  # of two consumers, which fill an H200 twice at most: smaller ones are more even
PACKED_GROUP_MIB = 32  # for packed sequences; the kernel does not depend on their lengths
TMA_ALIGNMENT = 128  # bytes, of a box in shared memory
NEEDS_HOPPER = "Hopper kernels need sm_90 (H100, H200)"
NEEDS_HOPPER_8_BIT = f"{NEEDS_HOPPER}, and no others read 8 bits: convert them to torch.bfloat16"
SHORT = 1024  # rows of Q up to which the ends of tiles cost more than their key blocks
FEW_ROWS = 320  # of Q, up to which two CTAs of 64 rows may share a multiprocessor
SIDE_BY_SIDE_KEYS = {64: (128, 112, 96), 80: (), 96: (112, 96)}
"""The keys of a block with which two such CTAs fit in shared memory, by the largest d_head. With 80
columns, two or three consumers are 1.2 to 2 times as fast at 128 to 256 rows."""
NARROW_STEP = 32  # few widths of the last keys, and so few kernels for all lengths


def heuristic(problem: Problem, arch: Arch) -> HopperForwardKernelConfig | str:
    """Return the config for a problem, or why there is none."""
    if problem.batch_invariant:
        return _invariant(problem, arch)
    config = _config(problem)
    if config is not None and problem.kv_8_bit:
        config = _for_8_bits(config, problem.dtype == E4M3)
    if config is None:
        return f"Hopper kernels have head dimensions up to {max(D_HEADS)}"
    if problem.page_keys:
        config = _for_pages(config, problem.page_keys)
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
    long = replace(problem, seq_q=2 * SHORT, seq_k=2 * SHORT, seqused_k=True, batch_invariant=False)
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
    choices: Iterable[int] = D_HEADS
    if problem.kv_8_bit:
        step = TMA_ALIGNMENT // gcd(problem.page_keys, TMA_ALIGNMENT)  # bytes of a row
        choices = tuple(d for d in choices if d % step == 0)
    elif problem.page_keys % 2:  # boxes of one row begin at multiples of 128 bytes
        choices = tuple(d for d in choices if d % 64 == 0)
    return smallest_holding(choices, problem.d_head, problem.d_v)


def _config(problem: Problem) -> HopperForwardKernelConfig | None:
    dtype, d_head = DType.from_string(str(problem.output_dtype)), hopper_d_head(problem)
    if not d_head:
        return None
    short, masked = problem.seq_q <= SHORT, problem.has_mask_function
    causal = problem.causal or problem.window is not None or masked
    uneven = causal or problem.per_batch  # tiles differ in length
    wide = _begins_within_sectors(problem) and d_head > 64 and d_head % 64 in (16, 32)
    common = _common(problem, causal) | {"wide_panels": wide}
    few_keys = problem.seq_k <= SHORT and not uneven

    def config(consumers: int, keys: int, stages: int, **rest: Any) -> HopperForwardKernelConfig:
        skip = few_keys and short and d_head > 64 and has_empty_consumers(problem.seq_q, consumers)
        options = {**common, "skip_empty": skip, **rest}
        return HopperForwardKernelConfig(dtype, d_head, consumers, keys, stages, **options)

    def narrow(keys: int) -> int:
        if uneven:  # on average the last keys fill half a block
            return keys // 2 // 16 * 16
        return narrow_keys(problem.seq_k, keys) if few_keys else 0

    if d_head <= 96:
        finish = {"stale_max": True, "prefetch_q": True}
        if few_keys and not wide and _shares(problem.seq_q, d_head):
            keys = min(_side_by_side(d_head), key=lambda keys: _cost(problem.seq_k, keys))
            return config(1, keys, 2, narrow_keys=narrow(keys), own_output=True, **finish)
        three = d_head <= 80 and not ((uneven and short) or (causal and problem.per_batch))
        consumers = 3 if three and not (_spills(problem) or _empty_rows(problem.seq_q)) else 2
        keys = 96 if consumers == 3 and d_head > 64 else 128  # more would spill
        finish["own_output"] = not (wide and consumers == 3)  # wide panels leave no room
        stages = 2 if wide and consumers == 2 else 3
        return config(consumers, keys, stages, ping_pong=True, narrow_keys=narrow(keys), **finish)
    if d_head <= 128:
        return config(
            *(2, 128, 2),
            ping_pong=True,
            own_output=True,
            stale_max=True,
            prefetch_q=few_keys,
            narrow_keys=narrow(128),
        )
    if d_head <= 160:
        keys = 112 if wide else 128
        return config(2, keys, 2, ping_pong=True, stale_max=True, narrow_keys=narrow(keys))
    if d_head <= 192:
        return config(2, 112, 2, ping_pong=True, stale_max=True, narrow_keys=64)
    keys = 80 if d_head <= 224 and not wide else 64
    few_tiles = d_head == 256 and causal and not problem.per_batch and _tiles(problem) <= FEW_TILES
    return config(
        *(1 if few_tiles else 2, keys, 2),
        ping_pong=not causal,
        stale_max=causal,
        prefetch_q=not (causal and short),
        narrow_keys=narrow(keys),
        direct_output=d_head == 256 and problem.seq_k <= 2 * SHORT and not problem.per_batch,
    )


def _side_by_side(d_head: int) -> tuple[int, ...]:
    return SIDE_BY_SIDE_KEYS[smallest_holding(SIDE_BY_SIDE_KEYS, d_head)]


def _common(problem: Problem, causal: bool) -> dict[str, Any]:
    """Return what the configs of all head dimensions have. Under a mask tiles differ in length."""
    uneven = causal or problem.per_batch
    group = PACKED_GROUP_MIB if problem.per_batch else group_mib(problem)
    return {
        "tma": True,
        "specialised": True,
        "overlap": True,
        "rescale_threshold": 8,
        "tile_order": TileOrder.DYNAMIC if uneven else TileOrder.PERSISTENT,
        "group_mib": group if causal else 0,
    }


def _shares(rows: int, d_head: int) -> bool:
    """Whether two CTAs of 64 rows share a multiprocessor. With more than 64 columns they are faster
    only where one of two consumers would have no query."""
    fits = rows <= FEW_ROWS and len(_side_by_side(d_head)) > 0
    return fits and (d_head <= 64 or has_empty_consumers(rows, 2))


def _tiles(problem: Problem) -> int:
    """Return how many tiles two consumers have."""
    return -(-problem.seq_q // (2 * WARPGROUP_ROWS)) * problem.heads * problem.batch


def _begins_within_sectors(problem: Problem) -> bool:
    """Whether rows of heads may begin within a sector of 32 bytes. The parts of a row that lie in
    different panels then read the sectors between them twice, so that wide panels are faster."""
    return problem.d_head % 16 > 0 or problem.d_v % 16 > 0


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


def narrow_keys(keys: int, block: int) -> int:
    """Return how wide the block after the last whole one is, or 0 if it is over half full."""
    rest = keys % block
    return -(-rest // NARROW_STEP) * NARROW_STEP if rest <= block // 2 else 0


def _cost(keys: int, block: int) -> tuple[int, bool]:
    """Return how many keys a row is multiplied with, also beyond the last, and whether there is a
    narrow block, which does not overlap with the next."""
    narrow = narrow_keys(keys, block)
    return keys // block * block + (narrow or block * (keys % block > 0)), narrow > 0


def has_empty_consumers(rows: int, consumers: int) -> bool:
    """Whether some consumers of the last tile have no query."""
    return -(-rows // WARPGROUP_ROWS) % consumers > 0


def _spills(problem: Problem) -> bool:
    """Whether a feature leaves too few registers for three consumers."""
    changes = problem.program is not None and problem.program.score is not None
    capped = problem.return_max and problem.softcap > 0
    return problem.dropout_p > 0 or capped or changes


def _empty_rows(rows: int) -> bool:
    """Whether tiles of three consumers have over a third more rows than those of two."""
    of_three, of_two = (-(-rows // tile) * tile for tile in (192, 128))
    return 3 * of_three > 4 * of_two


def _for_pages(config: HopperForwardKernelConfig, page_keys: int) -> HopperForwardKernelConfig:
    """Return the config with the key blocks that have larger boxes in common with pages."""
    even = min(1 << config.B_c.bit_length() - 1, 64)
    shared = gcd(page_keys, config.B_c)
    if shared == min(page_keys, config.B_c) or shared >= gcd(page_keys, even):
        return config
    return replace(config, B_c=even, narrow_keys=min(config.narrow_keys, even // 2))


def box_is_aligned(config: HopperForwardKernelConfig, page_keys: int) -> bool:
    """Whether boxes of the keys that a page and a key block have in common begin where TMA can
    write: at multiples of 128 bytes."""
    return gcd(page_keys, config.B_c) * box_row_bytes(config) % TMA_ALIGNMENT == 0


def box_row_bytes(config: HopperForwardKernelConfig) -> int:
    """Return the bytes of a row of a box of k or v."""
    return config.box_columns * config.kv_dtype.itemsize


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
