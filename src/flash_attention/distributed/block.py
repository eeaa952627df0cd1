# SPDX-License-Identifier: Apache-2.0
"""One task on one device: attention between some queries and some keys, and its gradients.

Tensors are (batch, rows, heads, d). A packed task has batch 1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from flash_attention.call.backward_call import Gradients, Wanted
from flash_attention.call.call import Call
from flash_attention.call.function import Function
from flash_attention.distributed.spans import Span, Spans
from flash_attention.distributed.tasks import Packed, Task
from flash_attention.families.readable import backward_call_of
from flash_attention.launch.compute import compute, compute_gradients
from flash_attention.program.moved import moved

ROWS = 1  # the dimension of rows
LSE_ROWS = 2  # that of the log-sum-exp, (batch, heads, rows)


class Score(NamedTuple):
    """How scores are computed."""

    softmax_scale: float | None = None
    softcap: float = 0.0
    function: Function | None = None  # of the whole problem
    first_head: int | None = None  # of those that a rank has; None if it has all
    documents: bool = False  # are what functions count as sequences


class Rows(NamedTuple):
    """What a backward pass needs of every query, and the gradients of its results."""

    q: Tensor
    o: Tensor
    lse: Tensor
    do: Tensor
    dlse: Tensor | None


def rows_at(tensor: Tensor, span: Span, dim: int = ROWS) -> Tensor:
    """A view of some rows."""
    return tensor.narrow(dim, span.start, span.rows)


def take(tensor: Tensor, spans: Spans) -> Tensor:
    """The rows of spans, one after the other. They are a view if there is one span."""
    if len(spans) == 1:
        return rows_at(tensor, spans[0])
    parts = [rows_at(tensor, span) for span in spans]
    return torch.cat(parts, ROWS) if parts else tensor[:, :0]


def split_rows(tensor: Tensor, spans: Spans) -> list[Tensor]:
    """Divide the rows that `take` returned among their spans again."""
    return list(tensor.split([span.rows for span in spans], ROWS))


def attend(task: Task, score: Score, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Compute a task. Returns the output and the log-sum-exp of its queries."""
    o, lse = compute(_call(task, score, q, k, v)._replace(return_lse=True))
    return (o, lse) if task.packed is None else (o[None], lse[None])


def differentiate(
    task: Task, score: Score, rows: Rows, k: Tensor, v: Tensor, deterministic: bool
) -> Gradients:
    """Compute the gradients of a task, given the results of its queries over all keys."""
    call = _call(task, score, rows.q, k, v)
    o, do = (rows_at(t, task.queries) for t in (rows.o, rows.do))
    lse = rows_at(rows.lse, task.queries, LSE_ROWS).contiguous()
    dlse = None if rows.dlse is None else rows_at(rows.dlse, task.queries, LSE_ROWS)
    if task.packed is not None:
        o, do, lse, dlse = o[0], do[0], lse[0], None if dlse is None else dlse[0]
    backward = backward_call_of(do, call._replace(out=o), lse, dlse, Wanted(), deterministic)
    found = compute_gradients(backward)
    if task.packed is None:
        return found
    return Gradients(*(None if gradient is None else gradient[None] for gradient in found))


def _call(task: Task, score: Score, q: Tensor, k: Tensor, v: Tensor) -> Call:
    q = rows_at(q, task.queries)
    k, v = (rows_at(t, task.keys) for t in (k, v))
    left, right = task.mask
    call = Call(
        *(q, k, v),
        window=None if left is right is None else (left, right),
        softmax_scale=score.softmax_scale,
        softcap=score.softcap,
        function=_function(task, score, q),
    )
    if task.packed is None:
        return call
    longest_q, longest_k = task.packed.longest
    starts_q, starts_k = _on_device(task.packed, q.device)
    return call._replace(
        q=q[0],
        k=k[0],
        v=v[0],
        cu_seqlens_q=starts_q,
        cu_seqlens_k=starts_k,
        max_seqlen_q=longest_q,
        max_seqlen_k=longest_k,
    )


def _function(task: Task, score: Score, q: Tensor) -> Function | None:
    """The function of a task, which sees the places of the whole problem."""
    if score.function is None:
        return None

    def of(places: tuple[int, ...]) -> int | Tensor:
        return places[0] if task.packed is None else _int32(places, q.device)

    documents, queries, keys = zip(*task.places, strict=True)
    by: dict[str, int | Tensor] = {"query": of(queries), "key": of(keys)}
    if q.shape[0] == 1:
        by["batch"] = of(documents) if score.documents else 0
    if score.first_head is not None:
        by["head"] = score.first_head
    return Function.of(moved(score.function.traced, by))


def _on_device(packed: Packed, device: torch.device) -> tuple[Tensor, Tensor]:
    return _int32(packed.starts_q, device), _int32(packed.starts_k, device)


@lru_cache(maxsize=512)
def _int32(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32).to(device)
