# SPDX-License-Identifier: Apache-2.0
"""`Judge` at problems whose oracle takes too long: some of the heads are held to it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flash_attention.call.call import Keywords
from flash_attention.reference.judge import Check, Judge, LseCheck, check_lse

if TYPE_CHECKING:
    from typing_extensions import Unpack

CHECKED_SCORES = 1 << 30  # the oracle computes about this many, of as many heads as that allows
CHECKED_KEYS = 1 << 28  # elements of one entry's K that it widens to float64 at a time
MIN_CHECKED_HEADS = 2


class PartJudge:
    """`Judge` on some of the heads; in the others an output may hold no NaN, which is the poison.

    The heads are spread evenly, the first and the last among them; each keeps the head of k and v
    that it shares with others. `scores` is about how many the oracle may compute, `cells` how many
    a head has; by the shapes, unless packed entries make them fewer.
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
        places = torch.linspace(0, heads - 1, count, dtype=torch.float64)
        self.heads = [int(place) for place in places.round()]
        of_k = [head // shared_by for head in self.heads]
        self._q, self._k, some_v = q[..., self.heads, :], k[..., of_k, :], v[..., of_k, :]
        sinks = keywords.get("sinks")
        if sinks is not None:
            keywords["sinks"] = sinks[self.heads]
        self._keywords = keywords
        self._judge = Judge(self._q, self._k, some_v, **keywords)

    def check(self, out: Tensor) -> Check:
        """Hold an output to the rule."""
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
        """Hold logarithms of sums of exponentials to theirs."""
        check = check_lse(lse[..., self.heads, :], self._q, self._k, **self._keywords)
        *entry, head, row = check.worst_index
        check = replace(check, worst_index=(*entry, self.heads[head], row))
        poison = lse.isnan().nonzero()
        if len(poison) == 0:
            return check
        return replace(check, error=math.nan, worst_index=tuple(map(int, poison[0])))
