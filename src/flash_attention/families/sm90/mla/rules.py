# SPDX-License-Identifier: Apache-2.0
"""What makes an MLA config valid, stated once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flash_attention.arch import Arch
from flash_attention.families.values import Choices, Violation, wrong_values

if TYPE_CHECKING:
    from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig

CHOICES: Choices = {
    "d_v": (128, 256, 384, 512),  # a half of V is whole panels of 64 columns
    "rescale_threshold": range(16),  # P up to 2^t: fp16 ends at 2^16
}


def first_violation(cfg: HopperMlaKernelConfig, arch: Arch) -> Violation | None:
    return next(_violations(cfg, arch), None)


def _violations(cfg: HopperMlaKernelConfig, arch: Arch) -> Iterator[Violation]:
    yield from wrong_values(cfg, CHOICES)
    if arch.name != "sm_90":
        yield Violation(
            "architecture", f"an MLA config needs sm_90 (H100, H200), this is {arch.name}"
        )
