# SPDX-License-Identifier: Apache-2.0
"""The ladder: one line a rung, each the rung before it with exactly one field changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from flash_attention.kernel_configs.dtype import DType
from flash_attention.kernel_configs.flash_forward import FlashForwardKernelConfig


@dataclass(frozen=True)
class Rung:
    """One step of the ladder."""

    number: int
    name: str
    idea: str
    field: str | None  # the one field that differs from the rung below; None for the first
    config: FlashForwardKernelConfig


class LadderError(ValueError):
    """A step that is not one change."""


def climb(
    base: FlashForwardKernelConfig, idea: str, *steps: tuple[str, str, dict[str, Any]]
) -> tuple[Rung, ...]:
    """Rungs from `base` upwards; every step is (name, idea, the one field it changes)."""
    rungs = [Rung(1, "base", idea, None, base)]
    for name, step_idea, change in steps:
        below = rungs[-1].config
        changed = [field for field, value in change.items() if getattr(below, field) != value]
        if len(change) != 1 or changed != list(change):
            raise LadderError(f"{name}: a rung changes exactly one field, this one {change}")
        config = replace(below, **change)
        rungs.append(Rung(len(rungs) + 1, name, step_idea, changed[0], config))
    return tuple(rungs)


STEPS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("swizzle", "XOR the 16-byte chunks of a row: no bank conflicts", {"swizzled": True}),
    (
        "eager K/V loads",
        "V flies during Q K^T, the next K during softmax and P V",
        {"eager_load_blocks": True},
    ),
    (
        "interleaved reads",
        "K fragments are read two tiles at a time, between the products",
        {"K_mma_load_K_tiles": 2},
    ),
    (
        "double-buffered reads",
        "the next fragments are read before the present ones are multiplied",
        {"mma_double_buffer_loads": True},
    ),
    ("fused exp2", "scale and subtract in one FFMA, exponent base 2", {"optimized_softmax": True}),
    (
        "tuned tile",
        "32 rows a warp instead of 16: every fragment of K and V feeds two products",
        {"n_warps": 4},
    ),
    (
        "folded addresses",
        "one address a lane; the swizzle of every access is an XOR by a constant",
        {"folded_addresses": True},
    ),
    ("serpentine order", "neighbouring products share an operand", {"serpentine_mma": True}),
    ("peeled first block", "the first key block rescales nothing", {"peel_first_block": True}),
    (
        "staged store",
        "O leaves through swizzled shared memory in 16-byte chunks",
        {"stage_output": True},
    ),
    (
        "reciprocal",
        "one reciprocal a row instead of a division an element",
        {"reciprocal_normalise": True},
    ),
    ("backward walk", "key blocks from the last to the first", {"reverse_kv": True}),
    ("cache hints", "whole L2 lines for the loads, nothing kept in L1", {"cache_hints": True}),
    (
        "column panels",
        "tiles cut into panels of 64 columns, 128 bytes a row",
        {"column_panels": True},
    ),
)


@cache
def get_ladder(dtype: DType = DType.FP16, d_head: int = 128, n_heads: int = 16) -> tuple[Rung, ...]:
    """The sixteen rungs; the last is compiled for tensors of `n_heads` contiguous heads."""
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
    static_stride = (
        "static stride",
        "the row stride is a constant: row offsets become immediates",
        {"static_row_stride": n_heads * d_head},
    )
    return climb(
        base,
        "tensor cores and online softmax; every copy is waited for where it starts",
        *STEPS,
        static_stride,
    )
