# SPDX-License-Identifier: Apache-2.0
"""Room for the results of a call, and what they are where no key is seen."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor


def new_output(q: Tensor, d_v: int, device: str | None = None) -> Tensor:
    """Room for an output of `d_v` columns; strided like q if that has as many."""
    if q.shape[-1] == d_v:
        return torch.empty_like(q, device=device)
    return q.new_empty((*q.shape[:-1], d_v), device=device)


def fill_keyless(lse: Tensor, sinks: Tensor | None) -> Tensor:
    """The log-sum-exp of rows that see no key: -inf, or the sink of their head."""
    return lse.fill_(-inf) if sinks is None else lse.copy_(sinks.detach()[:, None])
