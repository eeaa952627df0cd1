# SPDX-License-Identifier: Apache-2.0
"""What an sm_80 backward kernel computes, and which types that binds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.features import Features
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.errors import UnsupportedError
from flash_attention.families.bindings import score_bindings
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig


@dataclass(frozen=True)
class Sm80BackwardFeatures(Features):
    """What is asked, the gradients that one kernel computes, and whether its tiles visit the blocks
    that a mask function shows.

    A CTA owns keys, and adds dQ to sums in global memory. If dQ is the only gradient, it owns
    queries.
    """

    dq: bool = True
    dk: bool = True
    dv: bool = True
    listed: bool = False

    @property
    def owns_queries(self) -> bool:
        return not (self.dk or self.dv)

    @property
    def adds_dq(self) -> bool:
        return self.dq and not self.owns_queries

    @property
    def needs_ds(self) -> bool:
        return self.dq or self.dk

    def words(self) -> list[str]:
        computed = [name for name in ("dq", "dk", "dv") if getattr(self, name)]
        only = ["only", *computed] if len(computed) < 3 else []
        return [*super().words(), *only, *(["listed"] if self.listed else [])]

    def smem_bytes(self, config: FlashBackwardKernelConfig) -> int:
        """Dynamic shared memory of the kernel."""
        through_memory = self.dv + self.needs_ds
        weights = int(self.adds_dq) if config.register_operands else through_memory
        return config.smem_with(weights=weights, statistics=not self.owns_queries)

    def bindings(self, config: FlashBackwardKernelConfig) -> tuple[Binding, ...]:
        """The types and numbers that the features bind."""
        loop = f"{'Listed' if self.listed else ''}{'Q' if self.owns_queries else 'KV'}"
        return (
            *score_bindings(self, listed=self.listed),
            Variant("OuterLoop", "sm80/backward/outer_loop", loop),
            Number("sums_p", int(self.dv)),
            Number("sums_ds", int(self.dk or self.owns_queries)),
            Number("adds_dq", int(self.adds_dq)),
            Number("needs_ds", int(self.needs_ds)),
            Number("smem_bytes", self.smem_bytes(config)),
        )


def resolve(features: Features) -> Sm80BackwardFeatures:
    """The features of a kernel for all gradients; pages are refused. Sinks are in the log-sum-exp,
    so that no main kernel knows of them."""
    if features.page_keys:
        raise UnsupportedError(
            "block_table is asked for, and there are no gradients of a paged KV cache; pass k and v"
            " as dense tensors"
        )
    if isinstance(features, Sm80BackwardFeatures):
        return features
    return Sm80BackwardFeatures(
        *(features.mask, features.softcap, features.per_batch),
        dropout=features.dropout,
        program=features.program,
    )


def kernels_of(problem: BackwardProblem) -> tuple[Sm80BackwardFeatures, ...]:
    """The main kernels of a problem. A deterministic dQ has a kernel of its own, because additions
    to global memory come in any order."""
    dq, dk, dv, _ = problem.wanted
    every = replace(resolve(problem.features), dq=dq, dk=dk, dv=dv)
    kernels: tuple[Sm80BackwardFeatures, ...] = (every,) if dq or dk or dv else ()
    if dq and (dk or dv) and problem.deterministic:
        kernels = replace(every, dq=False), replace(every, dk=False, dv=False)
    listed = problem.has_mask_function and not problem.idle
    return tuple(replace(each, listed=listed) for each in kernels)
