# SPDX-License-Identifier: Apache-2.0
"""Is an attention output right? Inputs, a float64 oracle, and FlashAttention's tolerance rule."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType

SCORES_BYTES = 1 << 30  # of one chunk's score matrix
ERROR_FACTOR = 2  # how much worse than 16-bit torch a kernel may be


def generate_qkv(
    batch: int,
    seq_len: int,
    n_heads: int,
    d_head: int,
    dtype: torch.dtype | DType,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normally distributed q, k and v of shape (batch, seq_len, n_heads, d_head).

    The seed fixes the values on a given kind of device.
    """
    generator = torch.Generator(device).manual_seed(seed)
    shape = (batch, seq_len, n_heads, d_head)
    torch_dtype = dtype.to_torch_dtype() if isinstance(dtype, DType) else dtype

    def draw() -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch_dtype, device=device)

    return draw(), draw(), draw()


def generate_qkvo(
    batch: int,
    seq_len: int,
    n_heads: int,
    d_head: int,
    dtype: torch.dtype | DType,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`generate_qkv`, and an output full of NaN: an element nobody stores is seen."""
    q, k, v = generate_qkv(batch, seq_len, n_heads, d_head, dtype, device, seed)
    return q, k, v, torch.full_like(q, math.nan)


def oracle(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None) -> Tensor:
    """Attention in float64, on the tensors' device."""
    return _attention(q, k, v, softmax_scale, torch.float64)


def attention_16bit(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None) -> Tensor:
    """The oracle's formula in the tensors' own precision, every step rounded."""
    return _attention(q, k, v, softmax_scale, q.dtype)


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

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None) -> None:
        self._exact = oracle(q, k, v, softmax_scale)
        self._dtype = q.dtype
        reference = attention_16bit(q, k, v, softmax_scale)
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
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None
) -> Check:
    """Hold one output to the rule of `Judge`."""
    return Judge(q, k, v, softmax_scale).check(out)


def rounding_step(reference: Tensor) -> float:
    """One rounding step of a 16-bit result: what adding 0.3 and taking it away again costs."""
    return 2 * float((reference + 0.3 - 0.3 - reference).abs().max())


def _attention(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None, precision: torch.dtype
) -> Tensor:
    """softmax(q (scale k)^T) v in `precision`, a bounded part of the score matrix at a time."""
    batch, seq_q, heads, d_head = q.shape
    seq_k = k.shape[1]
    scale = d_head**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=precision, device=q.device)
    rows = max(1, min(seq_q, SCORES_BYTES // (seq_k * precision.itemsize)))
    together = max(1, SCORES_BYTES // (rows * seq_k * precision.itemsize))
    for b in range(batch):
        for h in range(0, heads, together):
            part = (b, slice(None), slice(h, h + together))
            queries, keys, values = (t[part].transpose(0, 1).to(precision) for t in (q, k, v))
            scaled_keys = (keys * scale).transpose(1, 2)
            for r in range(0, seq_q, rows):
                weights = torch.softmax(queries[:, r : r + rows] @ scaled_keys, dim=-1)
                out[b, r : r + rows, h : h + together] = (weights @ values).transpose(0, 1)
    return out
