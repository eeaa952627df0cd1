# SPDX-License-Identifier: Apache-2.0
"""Attention as a composition of torch's own operations, which torch differentiates in every mode,
and as often as it is asked to, and its tangent by formulas. The scores of all heads are stored."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.results import precision_of_lse
from flash_attention.call.tangent_call import TangentCall, WithTangent
from flash_attention.reference.formula import Formula, product


def attention_by_composition(
    call: Call, precision: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Compute a call of dense tensors without sinks, dropout and a function. Returns the output and
    its log-sum-exp. The arithmetic is in float32, or float64 if the tensors are, unless a precision
    is given."""
    precision = precision or precision_of_lse(call.q.dtype)
    formula = Formula.of(call, precision)
    q, k, v = _by_heads(call, call[:3], precision)
    if not k.shape[-2]:  # without a key there is nothing to differentiate
        out, lse = q.new_zeros(*q.shape[:-1], v.shape[-1]), q.new_full(q.shape[:-1], -math.inf)
        return out.transpose(1, 2).to(call.q.dtype), lse
    scores = product(q, (k * formula.scale).mT)
    weights, lse = _softmax(_capped(call, scores), formula)
    return product(weights, v).transpose(1, 2).to(call.q.dtype), lse


def evaluate_tangent(asked: TangentCall, precision: torch.dtype) -> WithTangent:
    """Compute such a call and the tangents of its results, every step in a precision."""
    call, *tangents = asked
    formula = Formula.of(call, precision)
    q, k, v = _by_heads(call, call[:3], precision)
    dq, dk, dv = _by_heads(call, tangents, precision)
    scores = _capped(call, product(q, (k * formula.scale).mT))
    slopes = product(dq, (k * formula.scale).mT) + product(q, (dk * formula.scale).mT)
    if cap := float(call.softcap):
        slopes = slopes * (1 - (scores / cap).square())
    weights, lse = _softmax(scores, formula)
    moved = weights * slopes
    growth = moved.sum(-1, keepdim=True)
    out = product(weights, v)
    tangent = product(weights, dv) + product(moved, v) - growth * out
    return WithTangent(out.transpose(1, 2), lse, tangent.transpose(1, 2), growth[..., 0])


def _by_heads(call: Call, given: Iterable[Tensor], precision: torch.dtype) -> list[Tensor]:
    """Return tensors as (batch, heads, rows, columns) with as many heads as q."""
    heads = call.q.shape[2]
    moved = (tensor.to(precision).transpose(1, 2) for tensor in given)
    return [t.repeat_interleave(heads // (t.shape[1] or 1), 1) for t in moved]


def _capped(call: Call, scores: Tensor) -> Tensor:
    cap = float(call.softcap)
    return cap * torch.tanh(scores / cap) if cap else scores


def _softmax(scores: Tensor, formula: Formula) -> tuple[Tensor, Tensor]:
    """Return the weights of scores, and their log-sum-exp."""
    hidden = formula.hidden(scores.shape[-2], scores.shape[-1], scores.device)
    scores = scores.masked_fill(hidden, -math.inf)
    keyless = hidden.all(-1, keepdim=True)
    # The derivatives of a softmax without a score are NaN, which is not masked afterwards.
    scores = scores.masked_fill(keyless, 0)
    largest = scores.amax(-1, keepdim=True).detach()
    weights = torch.exp(scores - largest)
    sums = weights.sum(-1, keepdim=True)
    weights = (weights / sums).masked_fill(keyless, 0)
    return weights, (largest + sums.log()).masked_fill(keyless, -math.inf)[..., 0]
