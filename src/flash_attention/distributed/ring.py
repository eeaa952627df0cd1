# SPDX-License-Identifier: Apache-2.0
"""Attention of the queries of a rank over the keys of all ranks, round by round, and its gradients.

Partial results are merged in float32 in the order of the rounds, so the bits of a result do not
depend on which message comes first. The backward pass recomputes each part with the log-sum-exp
over all keys. Gradients of keys go back to the rank that holds the keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from flash_attention.call.results import fill_keyless, precision_of_lse
from flash_attention.distributed.block import (
    LSE_ROWS,
    Rows,
    Score,
    attend,
    differentiate,
    rows_at,
    split_rows,
    take,
)
from flash_attention.distributed.rounds import Round
from flash_attention.distributed.spans import Spans, count_rows
from flash_attention.distributed.tasks import Task, halves
from flash_attention.distributed.transport import Exchange
from flash_attention.merge import merge


class Ring(NamedTuple):
    """How a rank computes with the others of its group. The tensors are those of each call."""

    group: ProcessGroup | None  # None if there is only one rank
    rank: int  # in the group
    rounds: tuple[Round, ...]
    score: Score
    deterministic: bool


def ring_attention(
    ring: Ring, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute attention of (batch, rows, heads, d) tensors. Returns the output and its
    log-sum-exp, which are differentiable."""
    record: Callable[..., tuple[Tensor, Tensor]] = _Ring.apply
    return record(ring, q, k, v, sinks)


class _Ring(Function):
    @staticmethod
    def forward(
        ctx: Any, ring: Ring, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        o, lse = _forward(ring, q, k, v, sinks)
        ctx.ring = ring
        ctx.save_for_backward(q, k, v, sinks, o, lse)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, o, lse = ctx.saved_tensors
        do = torch.zeros_like(o) if do is None else do
        rows = Rows(q, o, lse, do, dlse)
        dsinks = None
        if sinks is not None and ctx.needs_input_grad[4]:
            dsinks = _gradient_of_sinks(rows, sinks)
        return None, *_backward(ctx.ring, rows, k, v), dsinks


def _forward(
    ring: Ring, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    batch, rows, heads, _ = q.shape
    precision = precision_of_lse(q.dtype)
    o = q.new_zeros((batch, rows, heads, v.shape[-1]), dtype=precision)
    lse = fill_keyless(q.new_empty((batch, heads, rows), dtype=precision), sinks)
    for now, keys, values in _arriving(ring, k, v):
        for task in now.tasks:
            part = attend(task, ring.score, q, keys, values)
            o_rows, lse_rows = rows_at(o, task.queries), rows_at(lse, task.queries, LSE_ROWS)
            merged_o, merged_lse = merge(o_rows, lse_rows, *part)
            if task.queries.rows == rows:
                o, lse = merged_o, merged_lse
            else:
                o_rows.copy_(merged_o)
                lse_rows.copy_(merged_lse)
    return o.to(q.dtype), lse


def _backward(ring: Ring, rows: Rows, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute half of the own round at the end, while the gradients of the last keys travel."""
    precision = precision_of_lse(rows.q.dtype)
    dq, dk, dv = (torch.zeros_like(t, dtype=precision) for t in (rows.q, k, v))
    own = ring.rounds[0]
    opening, closing = halves(own.tasks) if len(ring.rounds) > 1 else (own.tasks, ())
    returning: list[tuple[Round, Exchange]] = []
    for now, keys, values in _arriving(ring, k, v):
        tasks = opening if now is own else now.tasks
        sums = _differentiate(ring, tasks, rows, keys, values, dq)
        _finish(ring, returning, dk, dv)
        returning.append((now, _return(ring, now, k, *sums)))
        _keep(ring, now, sums, dk, dv)
    if closing:
        here = own.sent[ring.rank]
        sums = _differentiate(ring, closing, rows, take(k, here), take(v, here), dq)
        _keep(ring, own, sums, dk, dv)
    _finish(ring, returning, dk, dv)
    dtype = rows.q.dtype
    return dq.to(dtype), dk.to(dtype), dv.to(dtype)


def _differentiate(
    ring: Ring, tasks: tuple[Task, ...], rows: Rows, keys: Tensor, values: Tensor, dq: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute tasks of a round: add to dq, and return the gradients of its keys and values."""
    dk, dv = (torch.zeros_like(t, dtype=dq.dtype) for t in (keys, values))
    for task in tasks:
        found = differentiate(task, ring.score, rows, keys, values, ring.deterministic)
        places = (task.queries, task.keys, task.keys)
        for total, span, part in zip((dq, dk, dv), places, found, strict=False):
            if part is not None:
                rows_at(total, span).add_(part)
    return dk, dv


def _keep(ring: Ring, now: Round, sums: tuple[Tensor, Tensor], dk: Tensor, dv: Tensor) -> None:
    """Add the gradients of the keys that are held here."""
    if ring.rank in now.sources:
        at, here = now.sources[ring.rank], now.sent[ring.rank]
        for total, part in zip((dk, dv), sums, strict=True):
            _add(total, here, take(part, at))


def _arriving(ring: Ring, k: Tensor, v: Tensor) -> Iterator[tuple[Round, Tensor, Tensor]]:
    """The keys and values of each round. Those of the next one travel meanwhile."""
    coming = _fetch(ring, ring.rounds[0], k, v)
    for number, now in enumerate(ring.rounds):
        arrived = coming.wait()
        if number + 1 < len(ring.rounds):
            coming = _fetch(ring, ring.rounds[number + 1], k, v)
        parts = {
            rank: _unpack(message, count_rows(now.sources[rank]), k, v)
            for rank, message in arrived.items()
        }
        if ring.rank in now.sources:
            here = now.sent[ring.rank]
            parts[ring.rank] = take(k, here), take(v, here)
        yield now, *_together(now, parts, k, v)


def _fetch(ring: Ring, now: Round, k: Tensor, v: Tensor) -> Exchange:
    """Send the keys and values that others see, and receive those that are seen here."""
    sent = {
        rank: _pack(take(k, spans), take(v, spans))
        for rank, spans in now.sent.items()
        if rank != ring.rank
    }
    awaited = {rank: rows * _width(k, v) for rank, rows in now.sizes(ring.rank).items()}
    return Exchange(ring.group, sent, awaited, like=k)


def _return(ring: Ring, now: Round, k: Tensor, dk: Tensor, dv: Tensor) -> Exchange:
    """Send the gradients of keys and values to the ranks that hold these, and receive those of
    the keys that are held here."""
    sent = {
        rank: _pack(take(dk, spans), take(dv, spans)).to(k.dtype)
        for rank, spans in now.sources.items()
        if rank != ring.rank
    }
    awaited = {
        rank: count_rows(spans) * _width(dk, dv)
        for rank, spans in now.sent.items()
        if rank != ring.rank
    }
    return Exchange(ring.group, sent, awaited, like=k)


def _finish(ring: Ring, returning: list[tuple[Round, Exchange]], dk: Tensor, dv: Tensor) -> None:
    """Add the gradients that have come back, in the order of ranks."""
    while returning:
        now, exchange = returning.pop()
        for rank, message in sorted(exchange.wait().items()):
            spans = now.sent[rank]
            parts = _unpack(message, count_rows(spans), dk, dv)
            for total, part in zip((dk, dv), parts, strict=True):
                _add(total, spans, part)


def _gradient_of_sinks(rows: Rows, sinks: Tensor) -> Tensor:
    """The gradient of sinks by the queries of this rank: a sink takes part in the sum of each."""
    delta = (rows.do.to(rows.lse.dtype) * rows.o.to(rows.lse.dtype)).sum(-1).mT
    if rows.dlse is not None:
        delta = delta - rows.dlse
    weights = torch.exp(sinks[:, None] - rows.lse)
    return -(weights * delta).sum((0, 2)).to(sinks.dtype)


def _together(
    now: Round, parts: dict[int, tuple[Tensor, Tensor]], k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Put the keys and values of all sources of a round into one tensor each."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    batch, _, heads, _ = k.shape
    whole = tuple(t.new_empty((batch, now.rows, heads, t.shape[-1])) for t in (k, v))
    for rank, of_rank in parts.items():
        for tensor, part in zip(whole, of_rank, strict=True):
            for span, some in zip(
                now.sources[rank], split_rows(part, now.sources[rank]), strict=True
            ):
                rows_at(tensor, span).copy_(some)
    keys, values = whole
    return keys, values


def _add(total: Tensor, spans: Spans, part: Tensor) -> None:
    for span, some in zip(spans, split_rows(part, spans), strict=True):
        rows_at(total, span).add_(some)


def _pack(k: Tensor, v: Tensor) -> Tensor:
    return torch.cat((k.flatten(), v.flatten()))


def _unpack(message: Tensor, rows: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    batch, _, heads, _ = k.shape
    shapes = [(batch, rows, heads, t.shape[-1]) for t in (k, v)]
    flat_k, flat_v = message.split([math.prod(shape) for shape in shapes])
    return flat_k.view(shapes[0]), flat_v.view(shapes[1])


def _width(k: Tensor, v: Tensor) -> int:
    """How many elements of k and v together a row has."""
    return k.shape[0] * k.shape[2] * (k.shape[-1] + v.shape[-1])
