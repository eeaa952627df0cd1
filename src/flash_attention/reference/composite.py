# SPDX-License-Identifier: Apache-2.0
"""Attention as a composition of torch's own operations, which torch differentiates in every mode,
and as often as it is asked to. The scores of all heads are stored."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.results import precision_of_lse
from flash_attention.reference.formula import Formula, product


def attention_by_composition(
    call: Call, precision: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Compute a call of dense tensors without sinks, dropout and a function. Returns the output and
    its log-sum-exp. The arithmetic is in float32, or float64 if the tensors are, unless a precision
    is given."""
    precision = precision or precision_of_lse(call.q.dtype)
    formula = Formula.of(call, precision)
    q, k, v = (t.to(precision).transpose(1, 2) for t in call[:3])
    group = q.shape[1] // (k.shape[1] or 1)
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    scores = product(q, (k * formula.scale).mT)
    if cap := float(call.softcap):
        scores = cap * torch.tanh(scores / cap)
    if not scores.shape[-1]:  # without a key there is nothing to differentiate
        out, lse = q.new_zeros(*q.shape[:-1], v.shape[-1]), q.new_full(q.shape[:-1], -math.inf)
        return out.transpose(1, 2).to(call.q.dtype), lse
    hidden = formula.hidden(q.shape[-2], k.shape[-2], scores.device)
    scores = scores.masked_fill(hidden, -math.inf)
    keyless = hidden.all(-1, keepdim=True)
    # The derivatives of a softmax without a score are NaN, which is not masked afterwards.
    scores = scores.masked_fill(keyless, 0)
    largest = scores.amax(-1, keepdim=True).detach()
    weights = torch.exp(scores - largest)
    sums = weights.sum(-1, keepdim=True)
    weights = (weights / sums).masked_fill(keyless, 0)
    lse = (largest + sums.log()).masked_fill(keyless, -math.inf)[..., 0]
    return product(weights, v).transpose(1, 2).to(call.q.dtype), lse
