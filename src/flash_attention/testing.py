# SPDX-License-Identifier: Apache-2.0
"""Is an attention output right? Inputs, a float64 oracle, and FlashAttention's tolerance rule.

q is (batch, seq_q, heads, d_head), k and v are (batch, seq_k, heads_k, d_head), and heads_k divides
heads. A causal mask ends at the last key: query i sees the keys j <= i + seq_k - seq_q. The output
of a query that sees no key is 0, the logarithm of its sum of exponentials -inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType

SCORES_BYTES = 1 << 30  # of one chunk's score matrix
ERROR_FACTOR = 2  # how much worse than 16-bit torch a kernel may be
LSE_ATOL = 1e-4  # a sum of exponentials may be this much off, as a fraction of it
LSE_RTOL = 1e-5  # of the largest logarithm: scores are float32 sums of d_head products


def generate_qkv(
    batch: int,
    seq_len: int,
    n_heads: int,
    d_head: int,
    dtype: torch.dtype | DType,
    device: torch.device | str = "cpu",
    seed: int = 0,
    *,
    seq_len_k: int | None = None,
    n_heads_k: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normally distributed q, k and v; k and v are like q but for what is given of theirs.

    The seed fixes the values on a given kind of device.
    """
    generator = torch.Generator(device).manual_seed(seed)
    torch_dtype = dtype.to_torch_dtype() if isinstance(dtype, DType) else dtype

    def draw(length: int, heads: int) -> Tensor:
        shape = (batch, length, heads, d_head)
        return torch.randn(shape, generator=generator, dtype=torch_dtype, device=device)

    of_k = (
        seq_len if seq_len_k is None else seq_len_k,
        n_heads if n_heads_k is None else n_heads_k,
    )
    return draw(seq_len, n_heads), draw(*of_k), draw(*of_k)


def generate_qkvo(
    batch: int,
    seq_len: int,
    n_heads: int,
    d_head: int,
    dtype: torch.dtype | DType,
    device: torch.device | str = "cpu",
    seed: int = 0,
    *,
    seq_len_k: int | None = None,
    n_heads_k: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`generate_qkv`, and an output full of NaN: an element nobody stores is seen."""
    q, k, v = generate_qkv(
        *(batch, seq_len, n_heads, d_head, dtype, device, seed),
        seq_len_k=seq_len_k,
        n_heads_k=n_heads_k,
    )
    return q, k, v, torch.full_like(q, math.nan)


def oracle(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False
) -> Tensor:
    """Attention in float64, on the tensors' device."""
    return _attention(q, k, v, softmax_scale, causal, torch.float64)


def oracle_lse(
    q: Tensor, k: Tensor, softmax_scale: float | None = None, causal: bool = False
) -> Tensor:
    """log(sum_j exp(scale q k_j)) in float64, (batch, heads, seq_q)."""
    batch, seq_q, heads, _ = q.shape
    shape = (batch, heads, seq_q)
    lse = torch.full(shape, -math.inf, dtype=torch.float64, device=q.device)
    for part in _score_parts(q, k, softmax_scale, causal, torch.float64):
        lse[part.batch, part.heads, part.rows] = part.scores.logsumexp(dim=-1)
    return lse


def attention_16bit(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False
) -> Tensor:
    """The oracle's formula in the tensors' own precision, every step rounded."""
    return _attention(q, k, v, softmax_scale, causal, q.dtype)


@dataclass(frozen=True)
class Check:
    """How far an output is from the oracle, and how far it may be."""

    error: float
    reference_error: float  # of 16-bit torch
    allowed: float
    worst_index: tuple[int, ...]  # (batch, seq, head, d_head) of `error`

    @property
    def ok(self) -> bool:
        """Whether the output passes; one with a NaN never does."""
        return self.error <= self.allowed

    @property
    def ratio(self) -> float:
        """Error in units of 16-bit torch's error."""
        if self.reference_error:
            return self.error / self.reference_error
        return math.inf if self.error else 0.0

    def __str__(self) -> str:
        verdict = "within" if self.ok else "NOT within"
        return (
            f"max error {self.error:.3e} at {self.worst_index}, {verdict} {self.allowed:.3e};"
            f" 16-bit torch has {self.reference_error:.3e} (ratio {self.ratio:.2f})"
        )


class Judge:
    """FlashAttention's rule at one problem: the oracle is computed once, every output held to it.

    The largest error of an output may be twice that of 16-bit torch, plus one rounding step.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> None:
        self._exact = oracle(q, k, v, softmax_scale, causal)
        self._dtype = q.dtype
        reference = attention_16bit(q, k, v, softmax_scale, causal)
        self.reference_error = float((reference - self._exact).abs().max())
        self.allowed = ERROR_FACTOR * self.reference_error + rounding_step(self._exact.to(q.dtype))

    def check(self, out: Tensor) -> Check:
        if out.shape != self._exact.shape or out.dtype != self._dtype:
            raise UnsupportedError(
                f"the output is {tuple(out.shape)} {out.dtype}, q is {tuple(self._exact.shape)}"
                f" {self._dtype}; an output has q's shape and dtype"
            )
        error = (out - self._exact).abs()
        worst = int(error.argmax())
        return Check(
            error=float(error.flatten()[worst]),
            reference_error=self.reference_error,
            allowed=self.allowed,
            worst_index=tuple(int(i) for i in np.unravel_index(worst, out.shape)),
        )


def check_output(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Check:
    """Hold one output to the rule of `Judge`."""
    return Judge(q, k, v, softmax_scale, causal).check(out)


@dataclass(frozen=True)
class LseCheck:
    """How far logarithms of sums of exponentials are from the oracle's, and how far they may be."""

    error: float
    allowed: float
    worst_index: tuple[int, ...]  # (batch, head, row) of `error`

    @property
    def ok(self) -> bool:
        """Whether they pass; NaN never does, and -inf only where a query sees no key."""
        return self.error <= self.allowed

    def __str__(self) -> str:
        verdict = "within" if self.ok else "NOT within"
        return (
            f"max error of lse {self.error:.3e} at {self.worst_index}, {verdict} {self.allowed:.3e}"
        )


def check_lse(
    lse: Tensor, q: Tensor, k: Tensor, softmax_scale: float | None = None, causal: bool = False
) -> LseCheck:
    """Hold natural logarithms, float32 (batch, heads, seq_q), to `oracle_lse`."""
    exact = oracle_lse(q, k, softmax_scale, causal)
    if lse.shape != exact.shape or lse.dtype != torch.float32:
        raise UnsupportedError(
            f"the lse is {tuple(lse.shape)} {lse.dtype}; it has (batch, heads, seq_q) ="
            f" {tuple(exact.shape)} elements of torch.float32"
        )
    keyless = exact == -math.inf
    error = (lse - exact).abs()
    error[keyless] = torch.where(lse[keyless] == -math.inf, 0.0, math.inf).to(error.dtype)
    worst = int(error.argmax())
    largest = float(exact.masked_fill(keyless, 0.0).abs().max())
    return LseCheck(
        error=float(error.flatten()[worst]),
        allowed=LSE_ATOL + LSE_RTOL * largest,
        worst_index=tuple(int(i) for i in np.unravel_index(worst, lse.shape)),
    )


def rounding_step(reference: Tensor) -> float:
    """One rounding step of a 16-bit result: what adding 0.3 and taking it away again costs."""
    return 2 * float((reference + 0.3 - 0.3 - reference).abs().max())


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None,
    causal: bool,
    precision: torch.dtype,
) -> Tensor:
    """softmax(q (scale k)^T) v in `precision`."""
    out = torch.zeros(q.shape, dtype=precision, device=q.device)
    for part in _score_parts(q, k, softmax_scale, causal, precision):
        values = _heads_of_keys(v, part.batch, part.heads, q.shape[2], precision)
        weights = torch.softmax(part.scores, dim=-1)
        product = weights @ values[:, : weights.shape[-1]]
        out[part.batch, part.rows, part.heads] = product.transpose(0, 1)
    return out


@dataclass(frozen=True)
class _ScorePart:
    """Masked, scaled scores (heads, rows, keys) of some rows of some heads of one batch entry."""

    batch: int
    heads: slice
    rows: slice
    scores: Tensor  # keys from the first one to the last one that any of the rows sees


def _score_parts(
    q: Tensor, k: Tensor, softmax_scale: float | None, causal: bool, precision: torch.dtype
) -> Iterator[_ScorePart]:
    """q (scale k)^T in parts of bounded size, all the rows that see a key."""
    batch, seq_q, heads, d_head = q.shape
    seq_k = k.shape[1]
    if seq_k == 0:
        return
    scale = d_head**-0.5 if softmax_scale is None else softmax_scale
    ahead = seq_k - seq_q  # under a causal mask, the last key that row 0 sees
    first = max(0, -ahead) if causal else 0
    count = max(1, min(seq_q - first, SCORES_BYTES // (seq_k * precision.itemsize)))
    together = max(1, SCORES_BYTES // (count * seq_k * precision.itemsize))
    for b in range(batch):
        for h in range(0, heads, together):
            some = slice(h, min(h + together, heads))
            queries = q[b, :, some].transpose(0, 1).to(precision)
            keys = (_heads_of_keys(k, b, some, heads, precision) * scale).transpose(1, 2)
            for r in range(first, seq_q, count):
                rows = slice(r, min(r + count, seq_q))
                seen = min(seq_k, rows.stop + ahead) if causal else seq_k
                scores = queries[:, rows] @ keys[:, :, :seen]
                if causal:
                    visible = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device)
                    scores.masked_fill_(~visible.tril(r + ahead), -math.inf)
                yield _ScorePart(b, some, rows, scores)


def _heads_of_keys(
    tensor: Tensor, batch: int, heads: slice, n_heads: int, precision: torch.dtype
) -> Tensor:
    """(heads, seq_k, d_head) of k or v for some heads of q; neighbours may share one."""
    shared_by = n_heads // tensor.shape[2]
    index = torch.arange(heads.start, heads.stop, device=tensor.device) // shared_by
    return tensor[batch].index_select(1, index).transpose(0, 1).to(precision)
