# SPDX-License-Identifier: Apache-2.0
"""The ladder: kernel configs, each of which differs from the rung below in exactly one field.

The forward and the backward pass have a ladder each. The sm_80 rungs come first. The first Hopper
rung starts again with a config of its own class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError, UnsupportedError, quoted
from flash_attention.families.config import KernelConfig
from flash_attention.families.passes import Pass
from flash_attention.families.sm80.backward import rungs as sm80_backward
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig
from flash_attention.families.sm90.backward import rungs as sm90_backward
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.tile_order import TileOrder

Step = tuple[str, str, dict[str, Any]]
"""The name, the idea, and the one changed field with its value."""

FAMILY = "family"  # the `field` of a rung that starts over with another kind of config
LADDER_D_HEADS = (64, 128)
ONE_SWITCH = ({"tile_order", "group_mib"}, {"tile_order", "group_heads"})
"""Pairs of fields of which neither is valid without the other."""


@dataclass(frozen=True)
class Rung:
    """One rung of the ladder."""

    number: int  # from 1
    name: str
    idea: str  # the optimisation, in one line
    field: str | None  # the field that differs from the rung below; None for the first
    config: KernelConfig
    causal: bool = False  # the optimisation is for causal masks and is measured with one


class LadderError(ValueError):
    """A step of the ladder does not change exactly one field."""


def climb(base: Rung, *steps: Step, causal: bool = False) -> tuple[Rung, ...]:
    """Return the rungs from `base` upwards. Raises LadderError if a step changes several fields."""
    rungs = [base]
    for name, idea, change in steps:
        below = rungs[-1]
        changed = [f for f, value in change.items() if getattr(below.config, f) != value]
        if changed != list(change) or (len(change) != 1 and set(change) not in ONE_SWITCH):
            raise LadderError(f"{name}: a rung changes exactly one field, this one {change}")
        config = replace(below.config, **change)
        rungs.append(Rung(below.number + 1, name, idea, changed[0], config, causal))
    return tuple(rungs)


STEPS: tuple[Step, ...] = (
    ("swizzle", "XOR the 16-byte chunks of a row: no bank conflicts", {"swizzled": True}),
    (
        "eager K/V loads",
        "V is copied during Q K^T, and the next K during softmax and P V",
        {"eager_load_blocks": True},
    ),
    (
        "interleaved reads",
        "K fragments are read two tiles at a time, between the products",
        {"K_mma_load_K_tiles": 2},
    ),
    (
        "double-buffered reads",
        "the next fragments are read before the current ones are multiplied",
        {"mma_double_buffer_loads": True},
    ),
    (
        "fused exp2",
        "scale and subtract in one FFMA, exponentials to base 2",
        {"optimized_softmax": True},
    ),
    (
        "tuned tile",
        "32 rows per warp instead of 16: every fragment of K and V feeds two products",
        {"n_warps": 4},
    ),
    (
        "folded addresses",
        "one address per lane; the swizzle of every access is an XOR with a constant",
        {"folded_addresses": True},
    ),
    ("serpentine order", "neighbouring products share an operand", {"serpentine_mma": True}),
    (
        "peeled first block",
        "the first key block is peeled off the loop, because it rescales nothing",
        {"peel_first_block": True},
    ),
    (
        "staged store",
        "O is stored through swizzled shared memory in 16-byte chunks",
        {"stage_output": True},
    ),
    (
        "reciprocal",
        "one reciprocal per row instead of one division per element",
        {"reciprocal_normalise": True},
    ),
    ("backward walk", "key blocks are visited from the last to the first", {"reverse_kv": True}),
    ("cache hints", "loads fetch whole L2 lines and keep nothing in L1", {"cache_hints": True}),
    (
        "column panels",
        "tiles are cut into panels of 64 columns, 128 bytes per row",
        {"column_panels": True},
    ),
)


HOPPER_STEPS: tuple[Step, ...] = (
    (
        "TMA",
        "one thread starts the copy of a whole block, and the copy engine applies the swizzle",
        {"tma": True},
    ),
    (
        "warp specialisation",
        "a producer warpgroup loads, and gives most of its registers to the consumers",
        {"specialised": True},
    ),
    ("two stages", "the next K and V arrive while this block is multiplied", {"stages": 2}),
    (
        "ping-pong",
        "consumers alternate: one multiplies while the other computes its softmax",
        {"ping_pong": True},
    ),
    (
        "overlap",
        "Q K^T of the next block is issued before the softmax of this one",
        {"overlap": True},
    ),
    (
        "persistent tiles",
        "one CTA per SM computes many tiles: the next one loads during the epilogue",
        {"tile_order": TileOrder.PERSISTENT},
    ),
    (
        "own output buffer",
        "O is staged beside Q, not over it, so that the next Q loads early",
        {"own_output": True},
    ),
    (
        "lazy rescale",
        "O is rescaled only when a row maximum grew by more than 2^8",
        {"rescale_threshold": 8},
    ),
    (
        "stale maximum",
        "unmasked blocks compute no row maxima, unless a row sum shows that one is needed",
        {"stale_max": True},
    ),
)

CAUSAL_STEPS: tuple[Step, ...] = (
    (
        "longest first",
        "an atomic counter hands out the longest tiles first, in groups of heads that fit in L2",
        {"tile_order": TileOrder.DYNAMIC, "group_mib": 32},
    ),
    (
        "narrow first block",
        "a warpgroup leaves out the half of its first block that the causal mask hides",
        {"narrow_keys": 64},
    ),
    (
        "prefetched queries",
        "the next tile's Q is prefetched into L2 while its buffer is in use",
        {"prefetch_q": True},
    ),
)


@cache
def get_ladder(
    dtype: DType = DType.FP16, d_head: int = 128, n_heads: int = 16, pass_: Pass = Pass.FORWARD
) -> tuple[Rung, ...]:
    """Return all rungs of a pass, first the sm_80 and then the Hopper ones.

    - `d_head`: 64 or 128.
    - `n_heads`: the last sm_80 rung of the forward pass is compiled for tensors of so many
      contiguous heads.
    """
    if d_head not in LADDER_D_HEADS or n_heads < 1:
        raise KernelConfigError(
            f"there is no ladder for d_head {quoted(d_head)} and {quoted(n_heads)} heads; it has"
            f" d_head {' or '.join(map(str, LADDER_D_HEADS))} and at least one head; pass a kernel"
            " config instead",
            rule="d_head",
        )
    if not pass_.has_ladder:
        raise KernelConfigError(
            f"the {pass_.value} pass has no ladder; pass a kernel config instead of a rung",
            rule="ladder",
        )
    if pass_ is Pass.BACKWARD:
        return _backward_rungs(dtype, d_head)
    flash = _flash_rungs(dtype, d_head, n_heads)
    return (*flash, *_hopper_rungs(dtype, d_head, first=len(flash) + 1))


def pick_rung(ladder: tuple[Rung, ...], number: int) -> Rung:
    """Return the rung with this number."""
    for rung in ladder:
        if rung.number == number:
            return rung
    raise UnsupportedError(
        f"there is no rung {number}; the ladder has rungs {ladder[0].number} to {ladder[-1].number}"
    )


def _flash_rungs(dtype: DType, d_head: int, n_heads: int) -> tuple[Rung, ...]:
    base = FlashForwardKernelConfig(
        dtype=dtype,
        d_head=d_head,
        B_r=128,
        B_c=32,
        n_warps=8,
        async_copy=True,
        eager_load_blocks=False,
        swizzled=False,
        Q_mma_load_K_tiles=2,
        K_mma_load_K_tiles=0,
        V_mma_load_K_tiles=0,
        mma_double_buffer_loads=False,
        optimized_softmax=False,
    )
    idea = "tensor cores and online softmax; every copy is awaited where it starts"
    static_stride = (
        "static stride",
        "the row stride is a constant: row offsets become immediates",
        {"static_row_stride": n_heads * d_head},
    )
    return climb(Rung(1, "base", idea, None, base), *STEPS, static_stride)


def _hopper_rungs(dtype: DType, d_head: int, first: int) -> tuple[Rung, ...]:
    base = HopperForwardKernelConfig(dtype, d_head, consumers=2, B_c=128, stages=1)
    idea = "four warps share one product read straight from shared memory; P stays in registers"
    rungs = climb(Rung(first, "wgmma", idea, FAMILY, base), *HOPPER_STEPS)
    return (*rungs, *climb(rungs[-1], *CAUSAL_STEPS, causal=True)[1:])


def _backward_rungs(dtype: DType, d_head: int) -> tuple[Rung, ...]:
    base = Rung(1, "base", sm80_backward.BASE_IDEA, None, sm80_backward.base(dtype, d_head))
    flash = climb(base, *sm80_backward.STEPS)
    start = Rung(
        len(flash) + 1,
        "wgmma",
        sm90_backward.BASE_IDEA,
        FAMILY,
        sm90_backward.base(dtype, d_head),
    )
    hopper = climb(start, *sm90_backward.steps(d_head))
    return (
        *flash,
        *hopper,
        *climb(hopper[-1], *sm90_backward.causal_steps(), causal=True)[1:],
    )
