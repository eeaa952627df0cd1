# SPDX-License-Identifier: Apache-2.0
"""Check attention outputs against the oracle by FlashAttention's tolerance rule."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, ParamSpec

import numpy as np
import torch
from torch import Tensor

from flash_attention.call.call import Call, Keywords
from flash_attention.call.dtype import DType
from flash_attention.call.results import E4M3, output_dtype
from flash_attention.call.tensors import DTYPES
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.families.sm90.mla.d_heads import is_mla
from flash_attention.reference.formula import max_scores
from flash_attention.reference.oracle import attention_16bit, oracle, oracle_lse

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")

ERROR_FACTOR = 2  # how many times the error of 16-bit torch is allowed
ERROR_FACTOR_8_BIT = 4  # the reference has no accumulators of 14 bits and no linear weights
LSE_ATOL = 1e-4  # absolute tolerance of a log-sum-exp
LSE_ATOL_8_BIT = 2.0**-4  # half a step of e4m3, since sums may be of weights of 8 bits
LSE_RTOL = 1e-5  # relative to the largest log-sum-exp, since scores are float32 sums
LSE_RTOL_8_BIT = 2.0**-11  # accumulators of 8-bit products keep about 14 bits


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
    d_v: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return normally distributed q, k and v.

    - `batch`, `seq_len`, `n_heads`, `d_head`: the shape of q, and by default that of k and v.
    - `dtype`, `device`: of all three.
    - `seed`: fixes the values, on a given type of device.
    - `seq_len_k`, `n_heads_k`: of k and v. `d_v`: the head dimension of v. If both head dimensions
      are those of MLA, v is the first columns of k.
    """
    if not isinstance(seed, Integral) or not 0 <= int(seed) < 1 << 63:
        raise UnsupportedError(f"seed is {quoted(seed)}; pass a whole number from 0 to 2**63 - 1")
    generator = torch.Generator(device).manual_seed(seed)
    torch_dtype = dtype.to_torch_dtype() if isinstance(dtype, DType) else dtype

    def draw(length: int, heads: int, d: int) -> Tensor:
        shape = (batch, length, heads, d)
        drawn_as = torch.float32 if torch_dtype == E4M3 else torch_dtype
        drawn = torch.randn(shape, generator=generator, dtype=drawn_as, device=device)
        return drawn.to(torch_dtype)

    of_k = (
        seq_len if seq_len_k is None else seq_len_k,
        n_heads if n_heads_k is None else n_heads_k,
    )
    q, k = draw(seq_len, n_heads, d_head), draw(*of_k, d_head)
    columns = d_head if d_v is None else d_v
    return q, k, k[..., :columns] if is_mla(d_head, columns) else draw(*of_k, columns)


def _with_output(
    generate: Callable[P, tuple[Tensor, Tensor, Tensor]],
) -> Callable[P, tuple[Tensor, Tensor, Tensor, Tensor]]:
    def generate_qkvo(*args: P.args, **kwargs: P.kwargs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return what `generate_qkv` does, and an output of NaN, which shows unstored elements."""
        q, k, v = generate(*args, **kwargs)
        shape, dtype = (*q.shape[:-1], v.shape[-1]), output_dtype(q)
        return q, k, v, torch.full(shape, math.nan, dtype=dtype, device=q.device)

    vars(generate_qkvo)["__signature__"] = inspect.signature(generate)
    return generate_qkvo


generate_qkvo = _with_output(generate_qkv)


def cu_seqlens(lengths: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Return the cu_seqlens of packed sequences of these lengths: int32 (batch + 1,)."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)


@dataclass(frozen=True)
class Check:
    """The largest error of an output against the oracle, and the allowed error."""

    error: float  # the largest error of the output
    reference_error: float  # the largest error of 16-bit torch
    allowed: float  # the largest error that passes
    worst_index: tuple[
        int, ...
    ]  # (batch, seq, head, column) of `error`, (row, head, column) packed
    value: float = math.nan  # the output's value there
    exact: float = math.nan  # the oracle's value there
    mismatched: int = 0  # elements with more than the allowed error, or NaN
    elements: int = 0  # elements that were checked

    @property
    def ok(self) -> bool:
        """Whether the output passes. An output with a NaN never does."""
        return self.error <= self.allowed

    @property
    def ratio(self) -> float:
        """The error as a multiple of 16-bit torch's."""
        if self.reference_error:
            return self.error / self.reference_error
        return math.inf if self.error else 0.0

    @property
    def mismatches(self) -> str:
        """The number and the percentage of wrong elements, as text."""
        percent = 100 * self.mismatched / max(1, self.elements)
        return f"{self.mismatched:,} of {self.elements:,} elements ({percent:.3g} %)"

    def __str__(self) -> str:
        verdict = "within" if self.ok else "NOT within"
        wrong = "" if self.ok else f"; mismatched: {self.mismatches}"
        return (
            f"max error {self.error:.3e} at {self.worst_index}, {verdict} {self.allowed:.3e};"
            f" 16-bit torch has {self.reference_error:.3e} (ratio {self.ratio:.2f}){wrong}"
        )


class Judge:
    """Checks outputs of one problem by FlashAttention's rule. The oracle is computed once.

    The largest error of an output may be twice that of 16-bit torch (of 8-bit tensors four times
    that of rounded weights), plus one rounding step. q, k, v and the keywords are those of
    `attention`.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, **keywords: Unpack[Keywords]) -> None:
        self._exact = oracle(q, k, v, **keywords)
        self._dtypes = DTYPES if q.dtype == E4M3 else (q.dtype,)
        reference = attention_16bit(q, k, v, **keywords)
        self.reference_error = float((reference - self._exact).abs().max())
        step = rounding_step(self._exact.to(output_dtype(q)))
        factor = ERROR_FACTOR_8_BIT if q.dtype == E4M3 else ERROR_FACTOR
        self.allowed = factor * self.reference_error + step

    def check(self, out: Tensor) -> Check:
        """Check one output. Raises UnsupportedError for a wrong shape or dtype."""
        if out.shape != self._exact.shape or out.dtype not in self._dtypes:
            raise UnsupportedError(
                f"the output is {tuple(out.shape)} {out.dtype}; an output has q's dtype, its shape"
                f" and the columns of v: {tuple(self._exact.shape)}"
                f" {' or '.join(map(str, self._dtypes))}"
            )
        error = (out - self._exact).abs()
        worst = int(error.argmax())
        return Check(
            error=float(error.flatten()[worst]),
            reference_error=self.reference_error,
            allowed=self.allowed,
            worst_index=tuple(int(i) for i in np.unravel_index(worst, out.shape)),
            value=float(out.flatten()[worst]),
            exact=float(self._exact.flatten()[worst]),
            mismatched=out.numel() - int((error <= self.allowed).sum()),
            elements=out.numel(),
        )


def check_output(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, **keywords: Unpack[Keywords]
) -> Check:
    """Check one output of `attention` with these arguments by the rule of `Judge`."""
    return Judge(q, k, v, **keywords).check(out)


@dataclass(frozen=True)
class LseCheck:
    """The largest error of a log-sum-exp, or of maxima, and the allowed error."""

    error: float
    allowed: float
    worst_index: tuple[int, ...]  # (batch, head, row) of `error`, (head, row) packed, (head,)

    @property
    def ok(self) -> bool:
        """Whether the lse passes. NaN never does, and -inf only where a query sees no key."""
        return self.error <= self.allowed

    def __str__(self) -> str:
        verdict = "within" if self.ok else "NOT within"
        return (
            f"max error of lse {self.error:.3e} at {self.worst_index}, {verdict} {self.allowed:.3e}"
        )


def check_lse(lse: Tensor, q: Tensor, k: Tensor, **keywords: Unpack[Keywords]) -> LseCheck:
    """Check the lse that `attention` returns for these arguments against the oracle."""
    exact = oracle_lse(q, k, **keywords)
    if lse.shape != exact.shape or lse.dtype != torch.float32:
        dims = "(batch, heads, seq_q)" if exact.ndim == 3 else "(heads, total_q)"
        raise UnsupportedError(
            f"the lse is {tuple(lse.shape)} {lse.dtype}; it has {dims} = {tuple(exact.shape)}"
            " elements of torch.float32"
        )
    return _compared(lse, exact, of_8_bits=q.dtype == E4M3)


def check_max(maxima: Tensor, q: Tensor, k: Tensor, **keywords: Unpack[Keywords]) -> LseCheck:
    """Check the maxima that `attention` returns for these arguments against the oracle, as an lse
    is checked."""
    exact = max_scores(Call(q, k, k[..., :1], **keywords), torch.float64)
    return _compared(maxima, exact, of_8_bits=q.dtype == E4M3)


def _compared(found: Tensor, exact: Tensor, *, of_8_bits: bool) -> LseCheck:
    keyless = exact == -math.inf
    error = (found - exact).abs()
    error[keyless] = torch.where(found[keyless] == -math.inf, 0.0, math.inf).to(error.dtype)
    worst = int(error.argmax())
    largest = float(exact.masked_fill(keyless, 0.0).abs().max())
    atol, rtol = (LSE_ATOL_8_BIT, LSE_RTOL_8_BIT) if of_8_bits else (LSE_ATOL, LSE_RTOL)
    return LseCheck(
        error=float(error.flatten()[worst]),
        allowed=atol + rtol * largest,
        worst_index=tuple(int(i) for i in np.unravel_index(worst, found.shape)),
    )


def rounding_step(reference: Tensor) -> float:
    """Return one rounding step of a 16-bit result: the error of adding and subtracting 0.3."""
    return 2 * float((reference + 0.3 - 0.3 - reference).abs().max())
