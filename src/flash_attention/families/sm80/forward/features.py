# SPDX-License-Identifier: Apache-2.0
"""What sm_80 kernels do beside plain attention, and which types that binds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flash_attention.call.features import Features, MaskKind
from flash_attention.call.problem import Problem
from flash_attention.compile.binding import Binding, Variant
from flash_attention.families.bindings import max_score_binding, shared_bindings
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig


@dataclass(frozen=True)
class Sm80Features(Features):
    """What is asked, and whether loads and stores are predicated though no feature asks."""

    predicated: bool = False

    @property
    def is_predicated(self) -> bool:
        """Whether loads and stores are predicated by where tensors and rows end."""
        more = self.sinks or self.max_score
        return self.predicated or self.mask is not MaskKind.FULL or self.per_batch or more

    def words(self) -> list[str]:
        return [*super().words(), *(["predicated"] if self.predicated else [])]

    def bindings(self) -> tuple[Binding, ...]:
        """The types that the features bind."""
        predication = Variant(
            "Predication", "sm80/predication", "On" if self.is_predicated else "Off"
        )
        if self.page_keys:
            predication = Variant("Predication", "sm80/predication", "Paged", self.page_keys)
        return (*shared_bindings(self), max_score_binding(self), predication)


def resolve(features: Features, *, predicated: bool = False) -> Sm80Features:
    """The features of an sm_80 kernel."""
    if isinstance(features, Sm80Features):
        return replace(features, predicated=features.predicated or predicated)
    return Sm80Features(
        *(features.mask, features.softcap, features.per_batch, features.page_keys),
        sinks=features.sinks,
        dropout=features.dropout,
        max_score=features.max_score,
        predicated=predicated,
    )


def features_of(
    config: FlashForwardKernelConfig, problem: Problem, return_lse: bool
) -> Sm80Features:
    """A kernel needs no predicates if its blocks divide the lengths, all tensors have its columns
    and as many heads, and no row ends in more than O."""
    features = resolve(problem.features)
    exact = (
        problem.seq_q % config.B_r == 0
        and problem.seq_k % config.B_c == 0
        and problem.heads == problem.heads_k
        and problem.d_head == problem.d_v == config.d_head
        and not return_lse
    )
    return resolve(features, predicated=not exact and not features.is_predicated)
