# SPDX-License-Identifier: Apache-2.0
"""`Judge` for large problems: only some of the heads are checked against the oracle."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from flash_attention.call.call import DESCALES, Call, Keywords
from flash_attention.reference.judge import Check, Judge, LseCheck, check_lse, check_max

if TYPE_CHECKING:
    from typing_extensions import Unpack

CHECKED_SCORES = 1 << 30  # the oracle computes about this many scores
CHECKED_KEYS = 1 << 28  # elements of K of one sequence that are converted to float64 at a time
MIN_CHECKED_HEADS = 2


class PartJudge:
    """Checks some of the heads as `Judge` does. The others may not contain NaN, the initial value.

    The checked heads are spread evenly and include the first and the last; with dropout all are
    checked. `scores` is about how many scores the oracle may compute. `cells` is how many scores a
    head has; the default follows from the shapes, and packed sequences may have fewer.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scores: int = CHECKED_SCORES,
        cells: int | None = None,
        **keywords: Unpack[Keywords],
    ) -> None:
        heads, shared_by = q.shape[-2], max(1, q.shape[-2] // max(1, k.shape[-2]))
        if cells is None:
            cells = math.prod(q.shape[:-2]) * k.shape[-3]
        affordable = scores // max(1, cells)
        affordable = min(affordable, CHECKED_KEYS // max(1, k.shape[-3] * k.shape[-1]))
        count = min(heads, max(MIN_CHECKED_HEADS, affordable))
        if keywords.get("dropout_p"):  # which depends on the number of the head
            count = heads
        places = torch.linspace(0, heads - 1, count, dtype=torch.float64)
        self.heads = [int(place) for place in places.round()]
        of_k = [head // shared_by for head in self.heads]
        self._q, self._k, some_v = q[..., self.heads, :], k[..., of_k, :], v[..., of_k, :]
        sinks = keywords.get("sinks")
        if sinks is not None:
            keywords["sinks"] = sinks[self.heads]
        for name in DESCALES:
            factor: Tensor | None = getattr(Call(q, k, v, **keywords), name)
            if factor is not None and factor.ndim > 1:
                keywords = cast(Keywords, keywords | {name: factor[:, of_k]})
        self._keywords = keywords
        self._judge = Judge(self._q, self._k, some_v, **keywords)

    def check(self, out: Tensor) -> Check:
        """Check one output."""
        held = out[..., self.heads, :]
        check = self._judge.check(held)
        *rows, head, column = check.worst_index
        check = replace(check, worst_index=(*rows, self.heads[head], column))
        poison = out.isnan().nonzero()
        if len(poison) == 0:
            return check
        where = tuple(map(int, poison[0]))
        wrong = check.mismatched - int(held.isnan().sum()) + len(poison)
        check = replace(check, mismatched=wrong, elements=out.numel())
        return replace(check, error=math.nan, worst_index=where, value=math.nan, exact=math.nan)

    def check_lse(self, lse: Tensor) -> LseCheck:
        """Check the log-sum-exp of the checked heads."""
        check = check_lse(lse[..., self.heads, :], self._q, self._k, **self._keywords)
        *entry, head, row = check.worst_index
        check = replace(check, worst_index=(*entry, self.heads[head], row))
        poison = lse.isnan().nonzero()
        if len(poison) == 0:
            return check
        return replace(check, error=math.nan, worst_index=tuple(map(int, poison[0])))

    def check_max(self, maxima: Tensor) -> LseCheck:
        """Check the maxima of the checked heads."""
        check = check_max(maxima[self.heads], self._q, self._k, **self._keywords)
        return replace(check, worst_index=(self.heads[check.worst_index[0]],))
