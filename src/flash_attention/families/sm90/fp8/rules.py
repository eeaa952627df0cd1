# SPDX-License-Identifier: Apache-2.0
"""What makes an FP8 config valid, stated once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.values import Choices, Violation, wrong_values

if TYPE_CHECKING:
    from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig

CHOICES: Choices = {
    "d_head": (64, 128, 256),
    "consumers": (2, 3),
    "B_c": range(32, 257, 32),
    "stages": (1, 2, 3, 4),
    "q_buffers": (1, 2),
    "linear_groups": range(5),
    "promote_blocks": range(65),
    "group_mib": range(4097),
}
MAX_PRODUCT_COLUMNS = 256  # of one wgmma
PANEL_KEYS = 64  # the fewest of a panel of a V that is given transposed
OTHER_REGISTERS = 32  # row maxima and sums, addresses, descriptors, barrier phases


def first_violation(cfg: HopperFp8KernelConfig, arch: Arch) -> Violation | None:
    return next(_violations(cfg, arch), None)


def _violations(cfg: HopperFp8KernelConfig, arch: Arch) -> Iterator[Violation]:
    yield from wrong_values(cfg, CHOICES, enums=(DType, TileOrder))
    if arch.name != "sm_90":
        yield Violation(
            "architecture", f"an FP8 config needs sm_90 (H100, H200), this is {arch.name}"
        )
    if cfg.value_rows > MAX_PRODUCT_COLUMNS:
        yield Violation(
            "tensor_sums",
            f"tensor_sums=True makes products of {cfg.value_rows} columns, and one has at most"
            f" {MAX_PRODUCT_COLUMNS}: set tensor_sums=False",
        )
    if cfg.linear_groups and not cfg.tensor_sums:
        yield Violation(
            "linear_groups_need_tensor_sums",
            f"linear_groups={cfg.linear_groups} makes weights that only the tensor cores sum:"
            " set tensor_sums=True or linear_groups=0",
        )
    if cfg.values_transposed and cfg.B_c % PANEL_KEYS:
        yield Violation(
            "values_transposed",
            f"values_transposed=True loads panels of {PANEL_KEYS} keys, B_c={cfg.B_c}: use a"
            f" multiple of {PANEL_KEYS}",
        )
    if cfg.tile_order is not TileOrder.DYNAMIC and cfg.group_mib:
        yield Violation(
            "group_mib",
            f"group_mib={cfg.group_mib} is for tile_order=TileOrder.DYNAMIC, this is"
            f" TileOrder.{cfg.tile_order.name}: set group_mib=0",
        )
    if cfg.smem_bytes() > arch.max_smem_per_cta:
        copy = " and the copy of O" if cfg.promote_blocks else ""
        yield Violation(
            "shared_memory",
            f"the buffers of Q, K, V{copy} take {cfg.smem_bytes()} bytes of shared memory,"
            f" {cfg.smem_bytes() - arch.max_smem_per_cta} more than a CTA of {arch.name} may have"
            f" ({arch.max_smem_per_cta}): use a smaller B_c, fewer stages, buffers of Q or"
            " consumers",
        )
    if (needed := registers_needed(cfg)) > (limit := cfg.register_split[1]):
        yield Violation(
            "registers",
            f"the accumulators, P and Q need about {needed} registers a thread, a thread of"
            f" {cfg.consumers} consumers has {limit}: use a smaller B_c"
            + (" or fewer consumers" if cfg.consumers == 3 else ""),
        )


def registers_needed(cfg: HopperFp8KernelConfig) -> int:
    """Count the live registers of a consumer's thread: O, S, P in fours, Q and the rest. With
    `overlap` there are two P."""
    output, scores, weights = cfg.value_rows // 2, cfg.B_c // 2, cfg.B_c // 8
    queries = cfg.d_head // 8 if cfg.q_in_registers else 0
    return output + scores + weights * (1 + cfg.overlap) + queries + OTHER_REGISTERS
