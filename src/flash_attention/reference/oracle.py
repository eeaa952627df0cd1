# SPDX-License-Identifier: Apache-2.0
"""Attention as it is defined: in float64, and in 16 bits with every step rounded.

q is (batch, seq_q, heads, d_qk), k is (batch, seq_k, heads_k, d_qk), v is (batch, seq_k, heads_k,
d_v), and heads_k divides heads. Tensors whose cu_seqlens is given are packed: (total, heads, d),
and an lse is (heads, total_q) then. Masks end at the last key: query i has the place i + seq_k -
seq_q, under a causal mask it sees the keys j <= place, in a window (left, right) those from
place - left to place + right; None and -1 are no limit. A sink is one more score of every row of a
head, with no value. The output of a query that sees no key is 0, the logarithm of its sum of
exponentials the sink or -inf.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

SCORES_BYTES = 1 << 30  # of one chunk's score matrix


class CallFeatures(TypedDict, total=False):
    """What a call may ask beyond a scale and a causal mask, as keyword arguments."""

    window: tuple[int | None, int | None] | None
    softcap: float
    sinks: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    seqused_k: Tensor | None


def oracle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    **features: Unpack[CallFeatures],
) -> Tensor:
    """Attention in float64, on the tensors' device."""
    return _attention(q, k, v, _Call.of(q, softmax_scale, causal, torch.float64, features))


def oracle_lse(
    q: Tensor,
    k: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    **features: Unpack[CallFeatures],
) -> Tensor:
    """log(sum_j exp(score_j)) in float64, (batch, heads, seq_q) or (heads, total_q)."""
    call = _Call.of(q, softmax_scale, causal, torch.float64, features)
    lse = torch.full(q.shape[:-1], -math.inf, dtype=torch.float64, device=q.device)
    if call.sinks is not None:
        lse[:] = call.sinks
    for queries, keys, logarithms in zip(*call.entries(q, k), call.rows(lse), strict=True):
        for part in call.parts(queries, keys):
            logarithms[part.rows, part.heads] = part.scores.logsumexp(dim=-1).T
    return lse.transpose(-1, -2).contiguous()


def attention_16bit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    **features: Unpack[CallFeatures],
) -> Tensor:
    """The oracle's formula in the tensors' own precision, every step rounded."""
    return _attention(q, k, v, _Call.of(q, softmax_scale, causal, q.dtype, features))


def _attention(q: Tensor, k: Tensor, v: Tensor, call: _Call) -> Tensor:
    """softmax(q (scale k)^T) v in the call's precision."""
    out = torch.zeros((*q.shape[:-1], v.shape[-1]), dtype=call.precision, device=q.device)
    for queries, keys, values, output in zip(*call.entries(q, k, v), call.rows(out), strict=True):
        for part in call.parts(queries, keys):
            columns = _heads_of_keys(values[part.keys], part.heads, q.shape[-2], call.precision)
            weights = torch.softmax(part.scores, dim=-1)[..., : columns.shape[1]]
            output[part.rows, part.heads] = (weights @ columns).transpose(0, 1)
    return out


@dataclass(frozen=True)
class _Part:
    """Masked, scaled scores of some rows of some heads of one batch entry."""

    heads: slice
    rows: slice
    keys: slice  # from the first to the last that any of the rows sees
    scores: Tensor  # (heads, rows, keys), or one column more: the sinks


@dataclass(frozen=True)
class _Call:
    """What is asked of the scores, and the precision to compute them in."""

    precision: torch.dtype
    scale: float
    left: float  # keys that a row sees before its own place
    right: float  # and after it
    softcap: float
    sinks: Tensor | None  # (heads,)
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    seqused_k: Tensor | None

    @classmethod
    def of(
        cls,
        q: Tensor,
        softmax_scale: float | None,
        causal: bool,
        precision: torch.dtype,
        features: CallFeatures,
    ) -> _Call:
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        left, right = (
            math.inf if n is None or n < 0 else n for n in features.get("window") or (None, None)
        )
        sinks = features.get("sinks")
        return cls(
            precision,
            scale,
            left,
            min(right, 0) if causal else right,
            features.get("softcap", 0.0),
            None if sinks is None else sinks.to(precision),
            features.get("cu_seqlens_q"),
            features.get("cu_seqlens_k"),
            features.get("seqused_k"),
        )

    def rows(self, of_q: Tensor) -> list[Tensor]:
        """The batch entries of q or of what has its rows."""
        return _entries(of_q, self.cu_seqlens_q)

    def entries(self, q: Tensor, *of_k: Tensor) -> Iterator[list[Tensor]]:
        """The batch entries of q, of k and of v; of the last two the rows in use."""
        yield self.rows(q)
        for tensor in of_k:
            entries = _entries(tensor, self.cu_seqlens_k)
            if self.seqused_k is not None:
                used = self.seqused_k.tolist()
                entries = [entry[:n] for entry, n in zip(entries, used, strict=True)]
            yield entries

    def parts(self, q: Tensor, k: Tensor) -> Iterator[_Part]:
        """q (scale k)^T of one entry in parts of bounded size, all the rows that see a key."""
        (seq_q, heads, _), seq_k = q.shape, k.shape[0]
        if seq_k == 0:
            return
        ahead = seq_k - seq_q  # the place of row 0
        first = int(max(0, -ahead - self.right))
        row_bytes = seq_k * self.precision.itemsize
        count = max(1, min(seq_q - first, SCORES_BYTES // row_bytes))
        together = max(1, SCORES_BYTES // (count * row_bytes))
        for h, r in itertools.product(range(0, heads, together), range(first, seq_q, count)):
            some = slice(h, min(h + together, heads))
            rows = slice(r, min(r + count, seq_q))
            keys = slice(
                int(max(0, r + ahead - self.left)),
                int(min(seq_k, rows.stop + ahead + self.right)),
            )
            queries = q[rows, some].transpose(0, 1).to(self.precision)
            scaled = _heads_of_keys(k[keys], some, heads, self.precision) * self.scale
            scores = queries @ scaled.transpose(1, 2)
            if self.softcap:
                scores = self.softcap * torch.tanh(scores / self.softcap)
            scores.masked_fill_(self._hidden(rows, keys, ahead, q.device), -math.inf)
            yield _Part(some, rows, keys, self._with_sinks(scores, some))

    def _hidden(self, rows: slice, keys: slice, ahead: int, device: torch.device) -> Tensor:
        place = torch.arange(rows.start, rows.stop, device=device)[:, None] + ahead
        key = torch.arange(keys.start, keys.stop, device=device)
        return (key < place - self.left) | (key > place + self.right)

    def _with_sinks(self, scores: Tensor, heads: slice) -> Tensor:
        if self.sinks is None:
            return scores
        column = self.sinks[heads, None, None].expand(-1, scores.shape[1], 1)
        return torch.cat((scores, column), dim=-1)


def _entries(tensor: Tensor, cu_seqlens: Tensor | None) -> list[Tensor]:
    """The batch entries of a tensor that is packed if it has cu_seqlens, each (seq, heads, ...)."""
    if cu_seqlens is None:
        return list(tensor.unbind())
    return [tensor[start:end] for start, end in itertools.pairwise(cu_seqlens.tolist())]


def _heads_of_keys(tensor: Tensor, heads: slice, n_heads: int, precision: torch.dtype) -> Tensor:
    """(heads, keys, d) of k or v for some heads of q; neighbours may share one."""
    shared_by = n_heads // tensor.shape[1]
    index = torch.arange(heads.start, heads.stop, device=tensor.device) // shared_by
    return tensor.index_select(1, index).transpose(0, 1).to(precision)
