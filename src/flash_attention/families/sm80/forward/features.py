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
    """What is asked, whether loads and stores are predicated though no feature asks, and whether
    tiles visit the blocks that a mask function shows."""

    predicated: bool = False
    listed: bool = False

    @property
    def is_predicated(self) -> bool:
        """Whether loads and stores are predicated by where tensors and rows end."""
        more = self.sinks or self.max_score or self.program is not None
        return self.predicated or self.mask is not MaskKind.FULL or self.per_batch or more

    def words(self) -> list[str]:
        own = ("predicated", "listed")
        return [*super().words(), *(word for word in own if getattr(self, word))]

    def bindings(self) -> tuple[Binding, ...]:
        """The types that the features bind."""
        kind = "Listed" if self.listed else "On" if self.is_predicated else "Off"
        predication = Variant("Predication", "sm80/predication", kind)
        if self.page_keys:
            kind = "ListedPaged" if self.listed else "Paged"
            predication = Variant("Predication", "sm80/predication", kind, self.page_keys)
        shared = shared_bindings(self, listed=self.listed)
        return (*shared, max_score_binding(self), predication)


def resolve(features: Features, *, predicated: bool = False) -> Sm80Features:
    """The features of an sm_80 kernel."""
    if isinstance(features, Sm80Features):
        return replace(features, predicated=features.predicated or predicated)
    return Sm80Features(
        *(features.mask, features.softcap, features.per_batch, features.page_keys),
        sinks=features.sinks,
        dropout=features.dropout,
        program=features.program,
        max_score=features.max_score,
        predicated=predicated,
    )


def features_of(
    config: FlashForwardKernelConfig, problem: Problem, return_lse: bool
) -> Sm80Features:
    """A kernel needs no predicates if its blocks divide the lengths, all tensors have its columns
    and as many heads, and no row ends in more than O."""
    has_rows = not problem.idle and 0 not in (problem.seq_q, problem.seq_k)
    listed = problem.has_mask_function and has_rows
    features = replace(resolve(problem.features), listed=listed)
    exact = (
        problem.seq_q % config.B_r == 0
        and problem.seq_k % config.B_c == 0
        and problem.heads == problem.heads_k
        and problem.d_head == problem.d_v == config.d_head
        and not return_lse
    )
    return resolve(features, predicated=not exact and not features.is_predicated)
