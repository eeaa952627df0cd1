# SPDX-License-Identifier: Apache-2.0
"""Which kernel answers a problem, when nobody measured it: rules of thumb from the H200."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from flash_attention.arch import Arch
from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.families.sm80.forward.rules import CHOICES as SM80_CHOICES
from flash_attention.families.sm90.forward.rules import CHOICES as HOPPER_CHOICES
from flash_attention.kernel_configs import (
    DType,
    HopperForwardKernelConfig,
    KernelConfig,
    TileOrder,
    parse_kernel_config,
)

MIB = 1 << 20
HELD_MIB = 32  # of K and V stay in L2 whatever else passes through it
PACKED_GROUP_MIB = 32  # of entries of any length: a batch of others needs no other kernel
SM80_SWITCHES = (
    "async+eager+swizzled+load_2_2_1_tiles+buffer+opt_softmax+folded+serpentine+staged+reciprocal"
    "+panels"
)
SHORT = 1024  # rows of Q up to which the ends of tiles weigh more than their key blocks


def select_config(problem: Problem, arch: Arch) -> KernelConfig:
    """The config to run `problem` with on `arch`."""
    hopper = _hopper(problem)
    if hopper is not None and problem.page_keys:
        hopper = _for_pages(hopper, problem.page_keys)
    if hopper is not None and hopper.broken_rule(arch) is None:
        return hopper
    sm80 = _sm80(problem)
    if sm80 is not None and sm80.broken_rule(arch) is None:
        return sm80
    raise UnsupportedError(
        f"no kernel for {problem} on {arch.name}: d_head is at most 256, and block_table needs"
        " sm_90 (H100, H200)"
    )


def hopper_d_head(problem: Problem) -> int:
    """The smallest d_head of the Hopper family that holds the problem's; 0 if none does."""
    return _smallest(HOPPER_CHOICES["d_head"], problem)


def _smallest(d_heads: Iterable[int], problem: Problem) -> int:
    widest = max(problem.d_head, problem.d_v)
    return min((d for d in d_heads if d >= widest), default=0)


def _hopper(problem: Problem) -> HopperForwardKernelConfig | None:
    dtype, d_head = DType.from_string(str(problem.dtype)), hopper_d_head(problem)
    causal, short = problem.causal or problem.window is not None, problem.seq_q <= SHORT
    group = PACKED_GROUP_MIB if problem.per_batch else group_mib(problem)
    common: dict[str, Any] = {
        "tma": True,
        "specialised": True,
        "overlap": True,
        "rescale_threshold": 8,
        "tile_order": TileOrder.DYNAMIC if causal else TileOrder.PERSISTENT,
        "group_mib": group if causal else 0,
    }

    def config(consumers: int, keys: int, stages: int, **rest: Any) -> HopperForwardKernelConfig:
        return HopperForwardKernelConfig(
            dtype, d_head, consumers, keys, stages, **{**common, **rest}
        )

    narrow = 64 if causal or problem.per_batch else 0  # the last keys fill half a block
    if d_head in (64, 96):
        three = d_head == 64 and not ((causal and short) or problem.per_batch)
        consumers = 3 if three and not _empty_rows(problem.seq_q) else 2
        return config(
            *(consumers, 128, 3),
            ping_pong=True,
            own_output=True,
            watch_sums=True,
            prefetch_q=True,
            narrow_keys=narrow,
        )
    if d_head == 128:
        return config(
            2, 128, 2, ping_pong=True, own_output=True, watch_sums=True, narrow_keys=narrow
        )
    if d_head == 192:
        return config(2, 112, 2, ping_pong=True, watch_sums=True, narrow_keys=64)
    if d_head == 256:
        return config(
            *(2, 64, 2),
            ping_pong=not causal,
            watch_sums=causal,
            prefetch_q=not (causal and short),
            narrow_keys=narrow // 2,
        )
    return None


def _empty_rows(rows: int) -> bool:
    """Whether tiles of three consumers hold over a third more rows than those of two would."""
    of_three, of_two = (-(-rows // tile) * tile for tile in (192, 128))
    return 3 * of_three > 4 * of_two


def _for_pages(config: HopperForwardKernelConfig, page_keys: int) -> HopperForwardKernelConfig:
    """The config with blocks that divide pages, or that pages divide, if blocks of 64 do."""
    if page_keys % config.B_c == 0 or config.B_c % page_keys == 0:
        return config
    return replace(config, B_c=64, narrow_keys=min(config.narrow_keys, 32))


def group_mib(problem: Problem) -> int:
    """K and V of the heads that are walked together, as if each had its own: those of all heads
    where L2 holds them, else enough tiles to balance the end of the walk, few enough for L2."""
    of_a_head = problem.seq_k * hopper_d_head(problem) * 2 * problem.dtype.itemsize
    if problem.batch * problem.heads_k * of_a_head <= HELD_MIB * MIB:
        every = -(-problem.batch * problem.heads * of_a_head // MIB)
        return min(max(1 << (every - 1).bit_length(), 4), 256)
    heads = 32 if problem.seq_k <= 2 * SHORT else 16 if problem.seq_k <= 8 * SHORT else 8
    if problem.d_head <= 64:
        heads *= 2
    size = heads * problem.seq_k * problem.d_head * 2 * problem.dtype.itemsize
    return min(max(1 << round(size / MIB).bit_length() - 1, 4), 256) if size >= MIB else 4


def _sm80(problem: Problem) -> KernelConfig | None:
    """Tall tiles, or short ones for few queries; 16 rows a warp where 32 do not fit registers."""
    d_head = _smallest(SM80_CHOICES["d_head"], problem)
    if not d_head or problem.page_keys:
        return None
    tile = "64, 64, 4" if problem.seq_q <= 64 else "128, 32, 4" if d_head <= 128 else "128, 32, 8"
    dtype = DType.from_string(str(problem.dtype)).name
    return parse_kernel_config(f"({dtype}, {d_head}, {tile}): {SM80_SWITCHES}")
