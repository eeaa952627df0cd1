# SPDX-License-Identifier: Apache-2.0
"""Attention by its definition, step by step, in a given precision.

The scores are stored, but only a bounded number of them at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.dropout import STEPS, kept_steps
from flash_attention.call.problem import Problem
from flash_attention.call.results import DESCALED_KEYS, E4M3, new_maxima
from flash_attention.call.tensors import MAX_ROWS
from flash_attention.program.torch_reader import Coordinates
from flash_attention.reference.dropout import kept_weights
from flash_attention.reference.functions import applied, places, slopes

SCORES_BYTES = 1 << 30  # of the scores, or of the copied keys, that are stored at a time


def evaluate(
    call: Call, precision: torch.dtype, *, lse: bool = False, weights_of_8_bits: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute softmax(q (scale k)^T) v with every step rounded to `precision`.

    Returns the output and, with `lse`, the log-sum-exp, else an empty tensor. The shapes are those
    of `attention`. A query that sees no key has output 0. Tensors of 8 bits are multiplied by their
    descale factors first. With `weights_of_8_bits` the weights are rounded to e4m3, as a product of
    8 bits takes them.
    """
    call = dequantised(without_pages(call), precision)
    q, k, v = call[:3]
    formula = Formula.of(call, precision)
    out = torch.zeros((*q.shape[:-1], v.shape[-1]), dtype=precision, device=q.device)
    sums = torch.full(q.shape[:-1] if lse else (0,), -math.inf, dtype=precision, device=q.device)
    if lse and formula.sinks is not None:
        sums[:] = formula.sinks
    of_queries = (formula.of_queries(t) for t in (q, out))
    of_keys = (formula.of_keys(t) for t in (k, v))
    logarithms = formula.of_queries(sums) if lse else itertools.repeat(sums)
    sequences = zip(*of_queries, *of_keys, logarithms)  # noqa: B905
    for index, (queries, output, keys, values, logarithm) in enumerate(sequences):
        for part in formula.parts(queries, keys, index):
            columns = values[part.keys]
            weights = (_rounded_softmax if weights_of_8_bits else _softmax)(part.scores)
            weights = formula.dropped(weights[..., : len(columns)], index, part)
            columns = of_shared_heads(columns, part.heads, q.shape[-2], precision)
            output[part.rows, part.heads] = product_of_heads(weights, columns).transpose(0, 1)
            if lse:
                logarithm[part.rows, part.heads] = part.scores.logsumexp(dim=-1).T
    return out, sums.transpose(-1, -2).contiguous() if lse else sums


def max_scores(call: Call, precision: torch.dtype) -> Tensor:
    """Return the largest score of every head that a query sees, scaled and without a softcap:
    (heads,). It is -inf if there is none. A score that is NaN does not count."""
    call = dequantised(without_pages(call), precision)._replace(softcap=0.0, sinks=None)
    formula = Formula.of(call, precision)
    largest = new_maxima((call.q.shape[-2],), call.q.device, precision)
    sequences = zip(formula.of_queries(call.q), formula.of_keys(call.k))  # noqa: B905
    for index, (queries, keys) in enumerate(sequences):
        for part in formula.parts(queries, keys, index):
            scores = part.scores.nan_to_num(-math.inf, math.inf, -math.inf)
            largest[part.heads] = largest[part.heads].maximum(scores.amax((1, 2)))
    return largest


def check_reads(call: Call) -> None:
    """Raise IndexError if the function of a call reads a captured tensor out of bounds. This waits
    for the tensors' device, and takes the time of computing all scores."""
    if call.function is None or not call.function.tensors:
        return
    call = without_pages(call)
    formula = Formula.of(call, torch.float32)
    sequences = zip(formula.of_queries(call.q), formula.of_keys(call.k))  # noqa: B905
    with torch.no_grad():
        for index, (queries, keys) in enumerate(sequences):
            for _ in formula.parts(queries, keys, index):
                pass


def _softmax(scores: Tensor) -> Tensor:
    """A row that sees no key has weights 0."""
    hidden = (scores == -math.inf).all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(hidden, 0), dim=-1).masked_fill(hidden, 0)


def _rounded_softmax(scores: Tensor) -> Tensor:
    """The largest weight of a row is 2^8, so that small ones keep their bits, and the sum is that
    of the weights before they are rounded."""
    largest = scores.amax(-1, keepdim=True)
    weights = 256 * torch.exp(scores - largest)
    return weights.to(E4M3).to(scores.dtype) / weights.sum(-1, keepdim=True)


def dequantised(call: Call, precision: torch.dtype) -> Call:
    """Return the call with tensors of 8 bits multiplied by their descale factors."""
    if call.k.dtype != E4M3:
        return call
    q, k, v = (
        tensor if factor is None else _multiplied(tensor.to(precision), factor, starts)
        for tensor, factor, starts in (
            (call.q, call.q_descale, call.cu_seqlens_q),
            (call.k, call.k_descale, call.cu_seqlens_k),
            (call.v, call.v_descale, call.cu_seqlens_k),
        )
    )
    return call._replace(q=q, k=k, v=v, q_descale=None, k_descale=None, v_descale=None)


def _multiplied(tensor: Tensor, factor: Tensor, starts: Tensor | None) -> Tensor:
    """A factor is for all, or (batch, heads_k) for the heads that use one of k and v, or (batch,
    heads_k, blocks) for blocks of their rows. A packed tensor has the cu_seqlens `starts`."""
    if factor.ndim < 2:
        return tensor * factor
    rows = torch.arange(tensor.shape[-3], dtype=torch.int32, device=tensor.device)
    sequence = torch.arange(len(factor), device=tensor.device)[:, None]
    if starts is not None:
        sequence = (torch.searchsorted(starts, rows, right=True) - 1).clamp(0, len(factor) - 1)
        rows = rows - starts[sequence]
    if factor.ndim == 2:
        of_rows = factor[sequence]  # (..., heads_k)
    else:
        of_rows = factor.transpose(1, 2)[sequence, rows // DESCALED_KEYS]
    return tensor * of_rows.repeat_interleave(tensor.shape[-2] // factor.shape[1], -1)[..., None]


def without_pages(call: Call) -> Call:
    """Return the call with a dense copy of its paged KV cache. Beyond the keys of a sequence, the
    block table may list pages that do not exist."""
    table = call.block_table
    if table is None or Problem.of(call).idle:
        return call
    k, v = (_listed(t, table).flatten(1, 2)[:, : call.max_seqlen_k] for t in (call.k, call.v))
    return call._replace(k=k, v=v, block_table=None, max_seqlen_k=None)


def _listed(pages: Tensor, table: Tensor) -> Tensor:
    """Return the pages that a block table lists. Those of 8 bits are indexed as integers, because
    torch 2.9 has no indexing of them on the CPU."""
    bits = pages.view(torch.uint8) if pages.itemsize == 1 else pages
    return bits[table.long().clamp(0, len(pages) - 1)].view(pages.dtype)


@dataclass(frozen=True)
class Part:
    """The masked, scaled scores of some rows of some heads of one sequence."""

    heads: slice
    rows: slice
    keys: slice  # from the first to the last key that any of the rows sees
    scores: Tensor  # (heads, rows, keys), with one more column for sinks
    slopes: Tensor | None = None  # derivatives of changed scores by the scaled ones
    before: tuple[Tensor, Coordinates] | None = None  # scores that a function changes, their places


@dataclass(frozen=True)
class Formula:
    """The options of the scores, and the precision to compute them in."""

    call: Call
    precision: torch.dtype
    scale: float
    left: float  # keys that a row sees before the one it is aligned with
    right: float  # and after it
    sinks: Tensor | None  # (heads,)

    @classmethod
    def of(cls, call: Call, precision: torch.dtype) -> Formula:
        scale = call.softmax_scale
        scale = call.q.shape[-1] ** -0.5 if scale is None else float(scale)
        window = call.window or (None, None)
        left, right = (math.inf if n is None or n < 0 else min(n, MAX_ROWS) for n in window)
        sinks = None if call.sinks is None else call.sinks.to(precision)
        return cls(call, precision, scale, left, min(right, 0) if call.causal else right, sinks)

    def of_queries(self, tensor: Tensor) -> Iterator[Tensor]:
        """Yield the sequences (seq, heads, ...) of a tensor with a row for each query."""
        return _entries(tensor, self.call.cu_seqlens_q)

    def of_keys(self, tensor: Tensor) -> Iterator[Tensor]:
        """Yield the sequences of a tensor with a row for each key, without rows that are unused."""
        used = self.call.seqused_k
        counts = itertools.repeat(None) if used is None else used.tolist()
        return (e[:n] for e, n in zip(_entries(tensor, self.call.cu_seqlens_k), counts))  # noqa: B905

    @property
    def counts_from_cache(self) -> bool:
        """Whether a function counts queries from the first key of a KV cache on."""
        return self.call.seqused_k is not None or self.call.block_table is not None

    def parts(
        self, q: Tensor, k: Tensor, sequence: int, *, with_slopes: bool = False
    ) -> Iterator[Part]:
        """Yield the scores q (scale k)^T of one sequence in pieces of bounded size, with the slopes
        of a score function if they are asked for."""
        (seq_q, heads, _), seq_k = q.shape, k.shape[0]
        if seq_k == 0:
            return
        ahead = seq_k - seq_q  # the key that row 0 is aligned with
        first = int(max(0, -ahead - self.right))
        row_bytes = seq_k * self.precision.itemsize
        count = max(1, min(seq_q - first, SCORES_BYTES // row_bytes))
        group = heads // k.shape[1]
        together = max(1, SCORES_BYTES // (max(count, k.shape[-1]) * row_bytes))
        together = max(1, together // group) * group  # all heads of q that share one of k
        count = max(1, min(count, SCORES_BYTES // (together * row_bytes)))
        for h, r in itertools.product(range(0, heads, together), range(first, seq_q, count)):
            some = slice(h, min(h + together, heads))
            rows = slice(r, min(r + count, seq_q))
            keys = slice(
                int(max(0, r + ahead - self.left)),
                int(min(seq_k, rows.stop + ahead + self.right)),
            )
            queries = q[rows, some].transpose(0, 1).to(self.precision)
            scaled = of_shared_heads(k[keys], some, heads, self.precision) * self.scale
            scores = product_of_heads(queries, scaled.mT)
            cap, of_scores, before = float(self.call.softcap), None, None
            if cap:
                scores = cap * torch.tanh(scores / cap)
            if (function := self.call.function) is not None:
                shift = ahead if self.counts_from_cache else 0
                queries_at = range(rows.start + shift, rows.stop + shift)
                at = places(sequence, some, queries_at, keys, q.device)
                if with_slopes:
                    before = (scores, at)
                    of_scores = slopes(function.traced, scores, at)
                    if cap:
                        of_scores = of_scores * (1 - (scores / cap).square())
                scores = applied(function.traced, scores, at)
            scores.masked_fill_(self._hidden(rows, keys, ahead, q.device), -math.inf)
            yield Part(some, rows, keys, self._with_sinks(scores, some), of_scores, before)

    def dropped(self, weights: Tensor, sequence: int, part: Part) -> Tensor:
        """Return weights of a part of a sequence with some of them dropped, and the others scaled,
        so that their sum is the same on average. Numbers of weights change in the same way."""
        state, p = self.call.rng_state, float(self.call.dropout_p)
        if state is None:
            return weights
        first = sequence * self.call.q.shape[-2]
        heads, rows, keys = part.heads, part.rows, part.keys
        of_all = range(first + heads.start, first + heads.stop)
        kept = kept_weights(
            state, p, of_all, range(rows.start, rows.stop), range(keys.start, keys.stop)
        )
        return (weights * (STEPS / kept_steps(p))).masked_fill_(~kept, 0)

    def hidden(self, seq_q: int, seq_k: int, device: torch.device) -> Tensor:
        """Return which keys the queries of a dense call do not see: (seq_q, seq_k)."""
        return self._hidden(slice(0, seq_q), slice(0, seq_k), seq_k - seq_q, device)

    def _hidden(self, rows: slice, keys: slice, ahead: int, device: torch.device) -> Tensor:
        position = torch.arange(rows.start, rows.stop, device=device)[:, None] + ahead
        key = torch.arange(keys.start, keys.stop, device=device)
        return (key < position - self.left) | (key > position + self.right)

    def _with_sinks(self, scores: Tensor, heads: slice) -> Tensor:
        if self.sinks is None:
            return scores
        column = self.sinks[heads, None, None].expand(-1, scores.shape[1], 1)
        return torch.cat((scores, column), dim=-1)


def _entries(tensor: Tensor, cu_seqlens: Tensor | None) -> Iterator[Tensor]:
    """Yield the sequences of a tensor (seq, heads, ...), by cu_seqlens if it is packed. Autograd
    needs a view that is stored to, to be made after earlier stores."""
    if cu_seqlens is None:
        yield from (tensor[i] for i in range(len(tensor)))
    else:
        yield from (tensor[start:end] for start, end in itertools.pairwise(cu_seqlens.tolist()))


def of_shared_heads(tensor: Tensor, heads: slice, n_heads: int, precision: torch.dtype) -> Tensor:
    """Return the heads of k or v that some heads of q share, (heads_k, keys, d)."""
    return tensor[:, shared_heads(heads, n_heads, tensor)].transpose(0, 1).to(precision)


def shared_heads(heads: slice, n_heads: int, tensor: Tensor) -> slice:
    """Return which heads of k or v all heads of q in a slice share."""
    group = n_heads // tensor.shape[1]
    return slice(heads.start // group, -(-heads.stop // group))


def product_of_heads(rows: Tensor, columns: Tensor) -> Tensor:
    """Multiply matrices of heads of q, (heads, n, m), by those of the heads of k that they share,
    (heads_k, m, d), which are not copied for it."""
    heads, n, m = rows.shape
    together = product(rows.reshape(len(columns), -1, m), columns)
    return together.view(heads, n, -1)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices. Products of 16-bit numbers are summed in float32, which many CPUs do a
    hundred times faster if the numbers are converted first."""
    if left.itemsize == 2 and left.device.type == "cpu":
        return (left.float() @ right.float()).to(left.dtype)
    return left @ right
