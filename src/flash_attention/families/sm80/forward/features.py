# SPDX-License-Identifier: Apache-2.0
"""What sm_80 kernels do beside plain attention, and which types that binds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flash_attention.call.features import Features, MaskKind
from flash_attention.call.problem import Problem
from flash_attention.compile.binding import Binding, Variant
from flash_attention.families.bindings import shared_bindings
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig


@dataclass(frozen=True)
class Sm80Features(Features):
    """What is asked, and whether the kernel looks where tensors end though nothing else asks."""

    guarded: bool = False

    @property
    def looks_at_bounds(self) -> bool:
        """Whether the kernel looks where tensors end, and at the ends of rows."""
        return self.guarded or self.mask is not MaskKind.FULL or self.per_batch or self.sinks

    def words(self) -> list[str]:
        return [*super().words(), *(["guarded"] if self.guarded else [])]

    def bindings(self) -> tuple[Binding, ...]:
        """The types that the features bind."""
        bounds = Variant("Bounds", "sm80/bounds", "Guarded" if self.looks_at_bounds else "Exact")
        if self.page_keys:
            bounds = Variant("Bounds", "sm80/bounds", "Paged", self.page_keys)
        return (*shared_bindings(self), bounds)


def resolve(features: Features, *, guarded: bool = False) -> Sm80Features:
    """The features of an sm_80 kernel."""
    if isinstance(features, Sm80Features):
        return replace(features, guarded=features.guarded or guarded)
    return Sm80Features(
        *(features.mask, features.softcap, features.per_batch, features.page_keys),
        sinks=features.sinks,
        guarded=guarded,
    )


def features_of(
    config: FlashForwardKernelConfig, problem: Problem, return_lse: bool
) -> Sm80Features:
    """A kernel looks at no bounds where there are none to see: its blocks divide the lengths, all
    tensors have its columns and as many heads, and no row ends in more than O."""
    features = resolve(problem.features)
    exact = (
        problem.seq_q % config.B_r == 0
        and problem.seq_k % config.B_c == 0
        and problem.heads == problem.heads_k
        and problem.d_head == problem.d_v == config.d_head
        and not return_lse
    )
    return resolve(features, guarded=not exact and not features.looks_at_bounds)
