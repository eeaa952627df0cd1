# SPDX-License-Identifier: Apache-2.0
"""Check gradients against float64 by FlashAttention's tolerance rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from flash_attention.call.backward_call import ALL, BackwardCall, Gradients, Wanted
from flash_attention.call.call import Call
from flash_attention.reference.formula import evaluate
from flash_attention.reference.gradients import evaluate_gradients
from flash_attention.reference.judge import ERROR_FACTOR, Check, rounding_step

CHECKED_SCORES = 1 << 29  # the oracle computes about this many scores, in several products


class GradientJudge:
    """Checks the gradients of one call. The oracle is computed once.

    The largest error of a gradient may be twice that of 16-bit torch, plus one rounding step. Where
    there are few rows, 16-bit torch may be right by chance, so that its error counts as at least
    that of exact formulas for the output that was stored in 16 bits, `call.out` if it is given. In
    large problems some heads of k are checked, spread evenly, with the heads of q that share them;
    the others may not contain NaN. `scores` is about how many scores the oracle may compute.
    """

    def __init__(
        self,
        call: Call,
        do: Tensor,
        dlse: Tensor | None = None,
        wanted: Wanted = ALL,
        *,
        scores: int = CHECKED_SCORES,
    ) -> None:
        self.heads_k = spread_heads(call, scores)
        self._shared_by = call.q.shape[-2] // max(1, call.k.shape[-2])
        heads = self.heads
        some = call._replace(
            q=call.q[..., heads, :],
            k=call.k[..., self.heads_k, :],
            v=call.v[..., self.heads_k, :],
            sinks=None if call.sinks is None else call.sinks[heads],
            out=None,
        )
        gradient = do[..., heads, :]
        of_lse = None if dlse is None else dlse[..., heads, :]
        with torch.no_grad():
            out, lse = evaluate(some, torch.float64, lse=True)
            given = out.to(call.q.dtype) if call.out is None else call.out[..., heads, :]
            asked = BackwardCall(gradient, some._replace(out=out), lse, of_lse, wanted)
            stored = asked._replace(call=some._replace(out=given))
            self._exact = evaluate_gradients(asked, torch.float64)
            inexact = (
                _rounded(some, gradient, of_lse, wanted),
                evaluate_gradients(stored, torch.float64),
            )
        self._errors = dict.fromkeys(Gradients._fields, 0.0)
        for gradients in inexact:
            for name, mine, exact in _pairs(gradients, self._exact):
                error = float((mine.double() - exact).abs().max()) if exact.numel() else 0.0
                self._errors[name] = max(self._errors[name], error)
        self._dtype = call.q.dtype

    @property
    def heads(self) -> list[int]:
        """The checked heads of q."""
        group = self._shared_by
        return [head * group + i for head in self.heads_k for i in range(group)]

    def check(self, gradients: Gradients) -> dict[str, Check]:
        """Check the wanted gradients, by name."""
        return {
            name: self._check(name, given, exact)
            for name, given, exact in _pairs(gradients, self._exact)
        }

    def _check(self, name: str, given: Tensor, exact: Tensor) -> Check:
        heads = self.heads if name in ("dq", "dsinks") else self.heads_k
        dim = -1 if name == "dsinks" else -2
        return check_heads(given, exact, self._errors[name], heads, dim, self._dtype)


def check_heads(
    given: Tensor,
    exact: Tensor,
    reference: float,
    heads: Sequence[int],
    dim: int,
    dtype: torch.dtype,
) -> Check:
    """Check some heads of a result, which are its elements `heads` along a dimension, against exact
    ones. `reference` is the largest error of 16-bit torch."""
    mine = given.index_select(dim, torch.tensor(heads, device=given.device)).double()
    error = (mine - exact).abs()
    step = rounding_step(exact.to(dtype)) if exact.numel() else 0.0
    allowed = ERROR_FACTOR * reference + step
    worst = int(error.argmax()) if error.numel() else 0
    place = [int(i) for i in np.unravel_index(worst, mine.shape)] if error.numel() else []
    if place:
        place[dim] = heads[place[dim]]
    check = Check(
        error=float(error.max()) if error.numel() else 0.0,
        reference_error=reference,
        allowed=allowed,
        worst_index=tuple(place),
        value=float(mine.flatten()[worst]) if error.numel() else math.nan,
        exact=float(exact.flatten()[worst]) if error.numel() else math.nan,
        mismatched=mine.numel() - int((error <= allowed).sum()),
        elements=mine.numel(),
    )
    poison = given.isnan().nonzero()
    if len(poison) == 0:
        return check
    return replace(check, error=math.nan, worst_index=tuple(map(int, poison[0])))


def spread_heads(call: Call, scores: int) -> list[int]:
    """Return the heads of k to check."""
    heads, group = call.k.shape[-2], call.q.shape[-2] // max(1, call.k.shape[-2])
    cells = math.prod(call.q.shape[:-2]) * call.k.shape[-3] * max(1, group)
    count = min(heads, max(1, scores // max(1, cells)))
    if call.dropout_p:  # which depends on the number of the head
        count = heads
    places = torch.linspace(0, heads - 1, count, dtype=torch.float64)
    return [int(place) for place in places.round()]


def _rounded(call: Call, do: Tensor, dlse: Tensor | None, wanted: Wanted) -> Gradients:
    """Compute the gradients in the precision of a call, from a forward pass in the same."""
    precision = call.q.dtype
    out, lse = evaluate(call, precision, lse=True)
    if precision.itemsize == 2:
        lse = evaluate(call, torch.float32, lse=True)[1]
    return evaluate_gradients(
        BackwardCall(do, call._replace(out=out), lse, dlse, wanted), precision
    )


def _pairs(mine: Gradients, others: Gradients) -> list[tuple[str, Tensor, Tensor]]:
    both = zip(Gradients._fields, mine, others, strict=True)
    return [(name, a, b) for name, a, b in both if a is not None and b is not None]
