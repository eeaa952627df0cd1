# SPDX-License-Identifier: Apache-2.0
"""What makes a config of wide heads valid, stated once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flash_attention.arch import Arch
from flash_attention.families.values import Choices, Violation, wrong_values

if TYPE_CHECKING:
    from flash_attention.families.sm90.wide.config import HopperWideKernelConfig

CHOICES: Choices = {
    "d_head": range(64, 513, 64),  # whole panels of shared memory
    "d_v": range(128, 513, 128),  # a half of V is whole panels
    "rescale_threshold": range(16),  # P up to 2^t: fp16 ends at 2^16
}


def first_violation(cfg: HopperWideKernelConfig, arch: Arch) -> Violation | None:
    return next(_violations(cfg, arch), None)


def _violations(cfg: HopperWideKernelConfig, arch: Arch) -> Iterator[Violation]:
    yield from wrong_values(cfg, CHOICES)
    if arch.name != "sm_90":
        yield Violation(
            "architecture", f"a config of wide heads needs sm_90 (H100, H200), this is {arch.name}"
        )
