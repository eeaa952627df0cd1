# SPDX-License-Identifier: Apache-2.0
"""The gradients of attention by their formulas, in a given precision.

S = Q (scale K)^T, P = exp(S - lse), dP = dO V^T and dS = P (dP - delta), where delta is the sum of
dO O in a row, less the gradient of its lse. Then dV = P^T dO, dQ = scale dS K, dK = scale dS^T Q.
Dropout applies to the P of dV, and to dP. The derivative of a softcap is a factor of dS. Of each
matrix of scores only a bounded number of elements is stored at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from flash_attention.call import tensors
from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.call.backward_checks import check_rows, check_types
from flash_attention.call.checks import views_of
from flash_attention.call.results import new_gradient, precision_of_lse
from flash_attention.call.tensors import TensorView
from flash_attention.program.layout import Sum
from flash_attention.reference.cpu import check_on_cpu
from flash_attention.reference.formula import (
    Formula,
    Part,
    of_shared_heads,
    product,
    product_of_heads,
    shared_heads,
)
from flash_attention.reference.functions import add_captured


def gradients_on_cpu(backward: BackwardCall) -> Gradients:
    """Compute the gradients of a call on CPU tensors in float32 or better. They have the dtypes of
    their tensors."""
    _check(backward)
    call = backward.call
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        sums = () if call.function is None else call.function.sums
        exact = evaluate_gradients(backward, precision_of_lse(call.q.dtype), sums)
        given = (call.q, call.k, call.v, call.sinks)
        return Gradients(
            *(
                None if d is None or t is None else new_gradient(t).copy_(d)
                for d, t in zip(exact, given, strict=True)
            )
        )


def _check(backward: BackwardCall) -> None:
    check_types(backward)
    call = backward.call
    problem = check_on_cpu(call)
    q, _, v, out = views_of(call)
    o = replace(out, name="o")
    tensors.check_output_kind(o, q, v)
    tensors.check_gradient(TensorView.of("do", backward.do), o)
    check_rows(backward, problem, q)


def evaluate_gradients(
    backward: BackwardCall, precision: torch.dtype, captured: Sequence[Sum] = ()
) -> Gradients:
    """Compute the wanted gradients of a call with every step rounded to `precision`. Those of
    tensors that its function has captured are added to `captured`.

    A query that sees no key has gradient 0, and adds only the gradient of its lse to that of its
    sink.
    """
    call, wanted = backward.call, backward.wanted
    formula = Formula.of(call._replace(sinks=None), precision)  # a sink counts in the lse alone
    rows = _Rows.of(backward, precision)
    dq, dk, dv = (
        torch.zeros(t.shape, dtype=precision, device=t.device) if is_wanted else None
        for t, is_wanted in zip(call[:3], wanted, strict=False)
    )
    sequences = zip(  # noqa: B905
        *(formula.of_queries(t) for t in rows),
        *(formula.of_keys(t) for t in (call.k, call.v)),
        itertools.repeat(None) if dq is None else formula.of_queries(dq),
        *(itertools.repeat(None) if t is None else formula.of_keys(t) for t in (dk, dv)),
    )
    dsinks = None
    if wanted.dsinks and call.sinks is not None:
        dsinks = torch.zeros(call.sinks.shape, dtype=precision, device=call.q.device)
    for index, (*of_queries, k, v, dq_rows, dk_rows, dv_rows) in enumerate(sequences):
        sequence = _Rows(*of_queries)
        for part in formula.parts(sequence.q, k, index, with_slopes=True):
            sums = Gradients(dq_rows, dk_rows, dv_rows, None)
            _add(formula, part, index, sequence, k, v, sums, captured)
        if dsinks is not None and call.sinks is not None:
            weights = torch.exp((call.sinks.to(precision) - sequence.lse).clamp_(max=0))
            dsinks -= (weights * sequence.delta).sum(0)
    return Gradients(dq, dk, dv, dsinks)


class _Rows(NamedTuple):
    """What the gradients need of every query: (..., heads, d), and (..., heads) for numbers, which
    have float32 or better, as they do inside of torch's softmax and its derivative."""

    q: Tensor
    do: Tensor
    delta: Tensor
    lse: Tensor  # infinite if the row sees no key, so that all of its weights are 0

    @classmethod
    def of(cls, backward: BackwardCall, precision: torch.dtype) -> _Rows:
        q, out = backward.call.q, backward.call.out
        assert out is not None  # BackwardCall has the output of its call
        numbers = torch.promote_types(precision, torch.float32)
        do, lse = backward.do.to(precision), backward.lse.to(numbers).transpose(-1, -2)
        delta = (do.to(numbers) * out.to(numbers)).sum(-1)
        if backward.dlse is not None:
            delta -= backward.dlse.to(numbers).transpose(-1, -2)
        return cls(q, do, delta, lse.masked_fill(lse == -math.inf, math.inf))


def _add(
    formula: Formula,
    part: Part,
    sequence: int,
    rows: _Rows,
    k: Tensor,
    v: Tensor,
    sums: Gradients,
    captured: Sequence[Sum],
) -> None:
    """Add what some rows of some heads of one sequence contribute to its gradients."""
    at, heads, precision = (part.rows, part.heads), rows.q.shape[1], formula.precision
    q, do = (t[at].transpose(0, 1).to(precision) for t in (rows.q, rows.do))
    delta, lse = (t[at].T[..., None] for t in (rows.delta, rows.lse))
    p = torch.exp((part.scores - lse).clamp_(max=0)).to(precision)  # lse is rounded
    if sums.dv is not None:
        kept = formula.dropped(p, sequence, part)
        _add_to_heads(sums.dv[part.keys], part.heads, heads, kept, do)
    if sums.dq is None and sums.dk is None and not captured:
        return
    values = of_shared_heads(v[part.keys], part.heads, heads, precision)
    dp = formula.dropped(product_of_heads(do, values.mT), sequence, part)
    ds = (p * (dp - delta)).to(precision)
    if captured and part.before is not None and formula.call.function is not None:
        add_captured(formula.call.function.traced, captured, *part.before, ds)
    if part.slopes is not None:
        ds *= part.slopes
    elif cap := float(formula.call.softcap):
        ds *= (1 - (part.scores / cap).square()).clamp_(min=0)  # of hidden keys -inf
    ds *= formula.scale
    if sums.dq is not None:
        dq = product_of_heads(ds, of_shared_heads(k[part.keys], part.heads, heads, precision))
        sums.dq[at] = dq.transpose(0, 1)
    if sums.dk is not None:
        _add_to_heads(sums.dk[part.keys], part.heads, heads, ds, q)


def _add_to_heads(total: Tensor, heads: slice, n_heads: int, weights: Tensor, of: Tensor) -> None:
    """Add the products of transposed weights, (heads, rows, keys), and rows of queries, (heads,
    rows, d), to the heads of k or v that the heads of q share."""
    some = shared_heads(heads, n_heads, total)
    together = (t.reshape(some.stop - some.start, -1, t.shape[-1]) for t in (weights, of))
    left, right = together
    total[:, some] += product(left.mT, right).transpose(0, 1)
