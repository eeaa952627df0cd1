# SPDX-License-Identifier: Apache-2.0
"""The rules that make a HopperForwardKernelConfig valid on an architecture."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING

from flash_attention.arch import REGISTERS_PER_SM, REGISTERS_PER_THREAD, Arch
from flash_attention.call.dtype import DType
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.values import Choices, Violation, wrong_values

if TYPE_CHECKING:
    from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig

CHOICES: Choices = {
    "d_head": range(16, 257, 16),
    "consumers": (1, 2, 3),
    "B_c": range(16, 257, 16),
    "stages": (1, 2, 3, 4),
    "group_mib": range(4097),
    "rescale_threshold": range(16),  # P up to 2^t: fp16 ends at 2^16
    "narrow_keys": range(0, 256, 16),
}
PRODUCER_FIELDS = (
    "ping_pong",
    "overlap",
    "tile_order",
    "own_output",
    "direct_output",
    "rescale_threshold",
    "narrow_keys",
    "watch_sums",
    "prefetch_q",
    "skip_empty",
    "wide_panels",
    "kv_8_bit",
    "q_8_bit",
)
"""Fields that need a producer, in the order they are checked."""

OTHER_REGISTERS = 32  # row maxima and sums, addresses, descriptors, barrier phases
REGISTER_STEP = 8  # registers of a thread are a multiple of this


def first_violation(cfg: HopperForwardKernelConfig, arch: Arch) -> Violation | None:
    return next(_violations(cfg, arch), None)


def _violations(cfg: HopperForwardKernelConfig, arch: Arch) -> Iterator[Violation]:
    yield from wrong_values(cfg, CHOICES, enums=(DType, TileOrder))
    if arch.name != "sm_90":
        yield Violation(
            "architecture",
            f"a Hopper config needs sm_90 (H100, H200), this is {arch.name}: "
            "use a FlashForwardKernelConfig",
        )
    yield from _missing_producer(cfg)
    yield from _switches_at_odds(cfg)
    if cfg.smem_bytes() > arch.max_smem_per_cta:
        own = ", or own_output=False" if cfg.own_output else ""
        yield Violation(
            "shared_memory",
            f"the buffers of Q, K, V and O take {cfg.smem_bytes()} bytes of shared memory, "
            f"{cfg.smem_bytes() - arch.max_smem_per_cta} more than a CTA of {arch.name} may have "
            f"({arch.max_smem_per_cta}): use a smaller B_c, fewer stages or consumers{own}",
        )
    if (needed := registers_needed(cfg)) > (limit := register_limit(cfg)):
        yield Violation(
            "registers",
            f"the accumulators and P need about {needed} registers a thread, a thread of "
            f"{cfg.consumers} consumers has {limit}: use a smaller B_c"
            + (" or fewer consumers" if cfg.consumers == 3 else ""),
        )


def _missing_producer(cfg: HopperForwardKernelConfig) -> Iterator[Violation]:
    if cfg.specialised:
        if not cfg.tma:
            yield Violation(
                "specialised_needs_tma",
                "specialised=True has one thread that loads for all, which only TMA can: "
                "set tma=True or specialised=False",
            )
        return
    if cfg.stages > 1:
        yield Violation(
            "stages_need_specialised",
            f"stages={cfg.stages} are filled by a producer that runs ahead: "
            "set specialised=True or stages=1",
        )
    for field in PRODUCER_FIELDS:
        if value := getattr(cfg, field):
            yield Violation(
                f"{field}_needs_specialised",
                f"{field}={_literal(value)} is for kernels with a producer: "
                f"set specialised=True or {field}={_literal(type(value)(0))}",
            )


def _switches_at_odds(cfg: HopperForwardKernelConfig) -> Iterator[Violation]:
    if cfg.ping_pong and cfg.consumers == 1:
        yield Violation(
            "ping_pong_needs_consumers",
            "ping_pong=True needs a second consumer to alternate with, and consumers=1: "
            "use 2 or 3 consumers or set ping_pong=False",
        )
    if cfg.own_output and cfg.direct_output:
        yield Violation(
            "direct_output",
            "own_output=True has a buffer for O, and direct_output=True stores it from registers:"
            " set one of them to False",
        )
    if cfg.skip_empty and cfg.consumers == 1:
        yield Violation(
            "skip_empty_needs_consumers",
            "skip_empty=True is for a tile whose last consumers have no query, and the only one of"
            " consumers=1 always has: use 2 or 3 consumers or set skip_empty=False",
        )
    if cfg.wide_panels and cfg.tight_panel_columns == cfg.panel_columns:
        yield Violation(
            "wide_panels",
            f"wide_panels=True changes nothing, because panels of d_head={cfg.d_head} have"
            f" {cfg.panel_columns} columns anyway: set wide_panels=False",
        )
    if cfg.kv_8_bit and cfg.consumers == 3:
        yield Violation(
            "kv_8_bit_needs_registers",
            "kv_8_bit=True converts in the producer's warpgroup, which has too few registers beside"
            " consumers=3: use 1 or 2 consumers or set kv_8_bit=False",
        )
    if cfg.q_8_bit and not cfg.kv_8_bit:
        yield Violation(
            "q_8_bit_needs_kv_8_bit",
            "q_8_bit=True is for k and v of 8 bits: set kv_8_bit=True or q_8_bit=False",
        )
    if cfg.tile_order is not TileOrder.DYNAMIC and cfg.group_mib:
        yield Violation(
            "group_mib",
            f"group_mib={cfg.group_mib} is for tile_order=TileOrder.DYNAMIC, "
            f"this is {_literal(cfg.tile_order)}: set group_mib=0",
        )
    if cfg.narrow_keys >= cfg.B_c:
        yield Violation(
            "narrow_keys",
            f"narrow_keys={cfg.narrow_keys}: use 0 (never) or a multiple of 16 below B_c={cfg.B_c}",
        )
    if cfg.watch_sums and cfg.rescale_threshold == 0:
        yield Violation(
            "watch_sums_needs_threshold",
            "watch_sums=True keeps a maximum while sums stay below the rescale threshold: "
            "set rescale_threshold to 1 to 15 or watch_sums=False",
        )


def _literal(value: object) -> str:
    return str(value) if not isinstance(value, Enum) else f"{type(value).__name__}.{value.name}"


def registers_needed(cfg: HopperForwardKernelConfig) -> int:
    """Count the live registers of a consumer's thread: O, S, P in pairs, and the rest."""
    output = cfg.d_head // 2
    scores = cfg.B_c // 2
    return output + scores + scores // 2 + OTHER_REGISTERS


def register_limit(cfg: HopperForwardKernelConfig) -> int:
    """Return the number of registers that a consumer's thread can have."""
    if cfg.specialised and cfg.register_split[1]:
        return cfg.register_split[1]
    share = REGISTERS_PER_SM // cfg.num_threads // REGISTER_STEP * REGISTER_STEP
    return min(share, REGISTERS_PER_THREAD)
