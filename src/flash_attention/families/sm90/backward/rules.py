# SPDX-License-Identifier: Apache-2.0
"""The rules that make a HopperBackwardKernelConfig valid on an architecture."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.families.sm90.backward.slots import (
    Derivative,
    QueryGradient,
    Schedule,
    TileOrder,
)
from flash_attention.families.values import Choices, Violation, wrong_values

if TYPE_CHECKING:
    from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig

CHOICES: Choices = {
    "d_head": (64, 128, 256),
    "B_r": (64, 128),
    "B_c": (64, 128),
    "stages": (1, 2, 3, 4),
    "ds_stages": (0, 1, 2),
    "group_heads": range(257),
}
PASS_COLUMNS = 64  # columns of dQ that a warpgroup computes at a time, for 64 queries
OTHER_REGISTERS = 24  # addresses, stages and parities; ptxas puts operands of products after these


def first_violation(cfg: HopperBackwardKernelConfig, arch: Arch) -> Violation | None:
    return next(_violations(cfg, arch), None)


def _violations(cfg: HopperBackwardKernelConfig, arch: Arch) -> Iterator[Violation]:
    yield from wrong_values(
        cfg, CHOICES, enums=(DType, QueryGradient, Derivative, Schedule, TileOrder)
    )
    if arch.name != "sm_90":
        yield Violation(
            "architecture",
            f"a Hopper config needs sm_90 (H100, H200), this is {arch.name}: "
            "use a FlashBackwardKernelConfig",
        )
    yield from _fields_at_odds(cfg)
    if cfg.smem_bytes() > arch.max_smem_per_cta:
        yield Violation(
            "shared_memory",
            f"the buffers of K, V, Q, dO, dS and gradients take {cfg.smem_bytes()} bytes of shared"
            f" memory, {cfg.smem_bytes() - arch.max_smem_per_cta} more than a CTA of {arch.name}"
            f" may have ({arch.max_smem_per_cta}): use a smaller B_r, or fewer stages or ds_stages",
        )
    if cfg.is_split:
        return
    if (needed := registers_needed(cfg)) > (limit := cfg.registers["key"]):
        yield Violation(
            "registers",
            f"the accumulators, P and dS need about {needed} registers a thread, a thread of a key"
            f" warpgroup has {limit}: use a smaller B_r, or another derivative than EXACT",
        )


SPLIT: dict[str, tuple[object, ...]] = {
    "d_head": (256,),
    "B_r": (64,),
    "B_c": (64,),
    "stages": (2,),
    "query_gradient": (QueryGradient.NONE, QueryGradient.WORKSPACE),
    "ds_stages": (2,),
    "tile_order": (TileOrder.ONE_EACH, TileOrder.GROUPED),
}
"""What a kernel with Schedule.SPLIT has, which d_head 256 needs."""


def _split_fields(cfg: HopperBackwardKernelConfig) -> Iterator[Violation]:
    for name, allowed in SPLIT.items():
        if (value := getattr(cfg, name)) not in allowed:
            said = " or ".join(_literal(each) for each in allowed)
            yield Violation(
                "split",
                f"{name}={_literal(value)} with schedule=Schedule.SPLIT: use {said}, or another"
                " schedule for d_head 64 and 128",
            )


def _literal(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else str(value)


def _fields_at_odds(cfg: HopperBackwardKernelConfig) -> Iterator[Violation]:
    if (cfg.tile_order is TileOrder.ONE_EACH) != (cfg.group_heads == 0):
        yield Violation(
            "group_heads",
            f"group_heads={cfg.group_heads} with tile_order={_literal(cfg.tile_order)}: use 0"
            " with ONE_EACH, and 1 or more with the others",
        )
    if cfg.is_split:
        yield from _split_fields(cfg)
        return
    if cfg.d_head == 256 or cfg.B_c == 64:
        yield Violation(
            "split",
            f"d_head={cfg.d_head} and B_c={cfg.B_c} with schedule={_literal(cfg.schedule)}, whose"
            " warpgroups have the keys of a tile of 128 and their dK and dV: use"
            " schedule=Schedule.SPLIT for d_head 256 and B_c 64",
        )
    if (cfg.query_gradient is QueryGradient.NONE) != (cfg.ds_stages == 0):
        yield Violation(
            "ds_stages",
            f"ds_stages={cfg.ds_stages} with query_gradient={_literal(cfg.query_gradient)}:"
            " use 0 with NONE, which passes no dS on, and 1 or 2 with the others",
        )
    if cfg.takes_turns and cfg.tile_order is not TileOrder.DYNAMIC:
        yield Violation(
            "turns_need_a_counter",
            f"query_gradient={_literal(cfg.query_gradient)} with"
            f" tile_order={_literal(cfg.tile_order)}: use TileOrder.DYNAMIC, with which a tile"
            " starts after those that it waits for, whichever CTA starts first",
        )
    by_keys = cfg.query_gradient in (QueryGradient.ATOMIC, QueryGradient.STAGED)
    if by_keys and cfg.B_r * cfg.d_head < 2 * PASS_COLUMNS * PASS_COLUMNS:
        yield Violation(
            "shared_query_gradient",
            f"query_gradient={_literal(cfg.query_gradient)} gives each key warpgroup"
            f" {PASS_COLUMNS} queries and columns of dQ, and B_r={cfg.B_r} and d_head={cfg.d_head}"
            " have enough for one: use B_r=128",
        )
    if cfg.schedule is not Schedule.SERIAL and cfg.stages == 1:
        yield Violation(
            "schedule_needs_stages",
            f"schedule={_literal(cfg.schedule)} needs the next Q while this one is in use:"
            " use 2 stages or more, or Schedule.SERIAL",
        )


def registers_needed(cfg: HopperBackwardKernelConfig) -> int:
    """Count the live registers of a key warpgroup's thread: dK, dV, S, P in pairs, P in float32
    if it is kept, and the rest."""
    scores = cfg.B_r // 2
    exact = scores if cfg.derivative is Derivative.EXACT else 0
    return cfg.d_head + scores + scores // 2 + exact + OTHER_REGISTERS
