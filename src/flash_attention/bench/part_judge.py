# SPDX-License-Identifier: Apache-2.0
"""Outputs of big problems, held to the oracle in some of the heads."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flash_attention import testing

if TYPE_CHECKING:
    from typing_extensions import Unpack

CHECKED_SCORES = 1 << 30  # the oracle computes about this many, of as many heads as that allows
CHECKED_KEYS = 1 << 28  # elements of one entry's K that it widens to float64 at a time
MIN_CHECKED_HEADS = 2


class PartJudge:
    """`Judge` on some of the heads; in the others an output may hold no NaN, which is the poison.

    The heads are spread evenly, the first and the last among them. `cells` is how many scores a
    head has, those of masked keys too.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cells: int,
        causal: bool,
        **features: Unpack[testing.CallFeatures],
    ) -> None:
        (heads, d_head), seq_k = q.shape[-2:], k.shape[-3]
        affordable = min(CHECKED_SCORES // cells, CHECKED_KEYS // (seq_k * d_head))
        count = min(heads, max(MIN_CHECKED_HEADS, affordable))
        places = torch.linspace(0, heads - 1, count, dtype=torch.float64)
        self.heads = [int(place) for place in places.round()]
        shared_by = heads // k.shape[-2]
        of_k = [head // shared_by for head in self.heads]
        some = (q[..., self.heads, :], k[..., of_k, :], v[..., of_k, :])
        self._judge = testing.Judge(*some, causal=causal, **features)

    def check(self, out: Tensor) -> testing.Check:
        check = self._judge.check(out[..., self.heads, :])
        *before, head, column = check.worst_index
        check = replace(check, worst_index=(*before, self.heads[head], column))
        poison = out.isnan().nonzero()
        if len(poison) == 0:
            return check
        return replace(check, error=math.nan, worst_index=tuple(map(int, poison[0])))
