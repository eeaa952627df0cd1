# SPDX-License-Identifier: Apache-2.0
"""Check outputs and their tangents against float64 by FlashAttention's tolerance rule."""

from __future__ import annotations

import torch
from torch import Tensor

from flash_attention.call.tangent_call import TangentCall, WithTangent
from flash_attention.reference.composite import evaluate_tangent
from flash_attention.reference.gradient_judge import check_heads, spread_heads
from flash_attention.reference.judge import Check

CHECKED_SCORES = 1 << 28  # the oracle stores about this many scores, several times
JUDGED = ("o", "o_tangent", "lse_tangent")  # which have their heads before the last dimension
SEED = 2  # of the tangents


def random_tangents(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return normally distributed tangents of tensors."""
    device = tensors[0].device
    generator = torch.Generator(device).manual_seed(SEED)
    drawn = (torch.randn(t.shape, generator=generator, device=device) for t in tensors)
    return tuple(d.to(t.dtype) for d, t in zip(drawn, tensors, strict=True))


class TangentJudge:
    """Checks the output of one call, its tangent, and that of its log-sum-exp.

    The largest error may be twice that of 16-bit torch, plus one rounding step. In large problems
    some heads of k are checked, spread evenly, with the heads of q that share them; the others may
    not contain NaN. `scores` is about how many scores the oracle may store.
    """

    def __init__(self, asked: TangentCall, *, scores: int = CHECKED_SCORES) -> None:
        call, *tangents = asked
        of_k = spread_heads(call, scores)
        group = call.q.shape[-2] // max(1, call.k.shape[-2])
        self.heads = [head * group + i for head in of_k for i in range(group)]
        picked = [self.heads, of_k, of_k]
        q, k, v = (t[..., heads, :] for t, heads in zip(call[:3], picked, strict=True))
        moved = (t[..., heads, :] for t, heads in zip(tangents, picked, strict=True))
        some = TangentCall(call._replace(q=q, k=k, v=v), *moved)
        self._dtype = call.q.dtype
        with torch.no_grad():
            self._exact = evaluate_tangent(some, torch.float64)
            rounded = evaluate_tangent(some, self._dtype)
        self._errors = {
            name: float((getattr(rounded, name) - getattr(self._exact, name)).abs().max())
            for name in JUDGED
        }

    def check(self, found: WithTangent) -> dict[str, Check]:
        """Check the results of the call, by name."""
        return {
            name: check_heads(
                *(getattr(found, name), getattr(self._exact, name), self._errors[name]),
                *(self.heads, -2, self._dtype),
            )
            for name in JUDGED
        }
