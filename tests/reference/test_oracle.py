# SPDX-License-Identifier: Apache-2.0
"""Windows, softcap, sinks, packed and shortened entries against the definition, score by score."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import pytest
import torch
from torch import Tensor

from flash_attention.call.call import Keywords
from flash_attention.reference import formula
from flash_attention.reference.judge import cu_seqlens, generate_qkv
from flash_attention.reference.oracle import attention_16bit, oracle, oracle_lse

HEADS, HEADS_K, D_QK, D_V = 4, 2, 8, 16
close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class Case:
    """One call whose entries have these lengths; q, k or both are packed."""

    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    used: tuple[int, ...] | None = None
    packed_q: bool = False
    packed_k: bool = False
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    softcap: float = 0.0
    sinks: bool = False
    scale: float | None = field(default=None)

    @property
    def keywords(self) -> Keywords:
        sinks = torch.linspace(-2, 2, HEADS, dtype=torch.float64)
        return {
            "softmax_scale": self.scale,
            "causal": self.causal,
            "window": self.window,
            "softcap": self.softcap,
            "sinks": sinks if self.sinks else None,
            "cu_seqlens_q": cu_seqlens(self.lengths_q) if self.packed_q else None,
            "cu_seqlens_k": cu_seqlens(self.lengths_k) if self.packed_k else None,
            "seqused_k": None if self.used is None else torch.tensor(self.used, dtype=torch.int32),
        }

    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        def shape(lengths: tuple[int, ...], packed: bool) -> tuple[int, int]:
            return (1, sum(lengths)) if packed else (len(lengths), lengths[0])

        def draw(lengths: tuple[int, ...], packed: bool, seed: int) -> tuple[Tensor, ...]:
            batch, rows = shape(lengths, packed)
            tensors = generate_qkv(
                *(batch, rows, HEADS, D_QK, torch.float16, "cpu", seed), n_heads_k=HEADS_K, d_v=D_V
            )
            return tuple(t[0] if packed else t for t in tensors)

        q, _, _ = draw(self.lengths_q, self.packed_q, 1)
        _, k, v = draw(self.lengths_k, self.packed_k, 2)
        return q, k, v

    def keys(self, entry: int, row: int) -> range:
        """Those that a row of an entry sees."""
        seq_k = (self.used or self.lengths_k)[entry]
        place = row + seq_k - self.lengths_q[entry]
        left, right = (seq_k + 99 if n in (None, -1) else n for n in self.window or (None, None))
        if self.causal:
            right = min(right or 0, 0)
        assert left is not None
        assert right is not None
        return range(max(0, place - left), min(seq_k, place + right + 1))


CASES = [
    Case((7, 7), (7, 7), window=(2, 1)),
    Case((7, 7), (7, 7), window=(0, 0)),
    Case((5, 5), (9, 9), window=(3, -1)),
    Case((5, 5), (9, 9), window=(None, 2)),
    Case((9, 9), (4, 4), window=(2, 1)),
    Case((9, 9), (4, 4), window=(1, 3), causal=True),
    Case((5, 5), (9, 9), window=(-1, None)),
    Case((5, 5), (9, 9), softcap=0.7, scale=1.5),
    Case((9, 9), (4, 4), causal=True, sinks=True),
    Case((3, 3), (0, 0), sinks=True),
    Case((4, 4), (6, 6), used=(3, 0)),
    Case((4, 4), (6, 6), used=(3, 6), causal=True, sinks=True),
    Case((4, 0, 6), (5, 3, 2), packed_q=True, packed_k=True),
    Case((4, 0, 6), (5, 3, 2), packed_q=True, packed_k=True, causal=True, window=(1, 0)),
    Case((4, 1, 6), (5, 0, 2), packed_q=True, packed_k=True, causal=True, sinks=True),
    Case((4, 1, 6), (5, 3, 2), used=(2, 3, 0), packed_q=True, packed_k=True, softcap=3.0),
    Case((4, 1, 6), (5, 5, 5), packed_q=True, causal=True),
    Case((3, 3), (5, 2), packed_k=True, window=(1, 0)),
]


def by_the_definition(case: Case, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Output and lse in Python floats."""
    out = torch.zeros(*q.shape[:-1], D_V, dtype=torch.float64)
    lse = torch.full((*q.shape[:-3], HEADS, q.shape[-3]), math.nan, dtype=torch.float64)
    starts_q, starts_k = ([0, *accumulate(lengths)] for lengths in (case.lengths_q, case.lengths_k))
    scale = D_QK**-0.5 if case.scale is None else case.scale
    sinks = case.keywords["sinks"]
    for entry, seq_q in enumerate(case.lengths_q):
        q_at = (starts_q[entry],) if case.packed_q else (entry, 0)
        k_at = (starts_k[entry],) if case.packed_k else (entry, 0)
        for row in range(seq_q):
            at = (*q_at[:-1], q_at[-1] + row)
            for head in range(HEADS):
                shared = head * HEADS_K // HEADS
                total = 0.0 if sinks is None else math.exp(sinks[head])
                for j in case.keys(entry, row):
                    key = (*k_at[:-1], k_at[-1] + j, shared)
                    score = scale * float(q[(*at, head)].double() @ k[key].double())
                    if case.softcap:
                        score = case.softcap * math.tanh(score / case.softcap)
                    total += math.exp(score)
                    out[(*at, head)] += math.exp(score) * v[key].double()
                lse[(*at[:-1], head, at[-1])] = math.log(total) if total else -math.inf
                out[(*at, head)] /= total or 1.0
    return out, lse


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("scores_bytes", [1, 3 * 9 * 8, 1 << 30])
def test_the_oracle_is_the_definition(
    case: Case, scores_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formula, "SCORES_BYTES", scores_bytes)
    q, k, v = case.qkv()
    out, lse = by_the_definition(case, q, k, v)
    close(oracle(q, k, v, **case.keywords), out)
    close(oracle_lse(q, k, **case.keywords), lse)
    rounded = attention_16bit(q, k, v, **case.keywords)
    assert rounded.dtype == q.dtype
    torch.testing.assert_close(rounded.double(), out, rtol=0, atol=1e-2)


def test_sinks_of_the_tensors_precision_serve_both() -> None:
    q, k, v = generate_qkv(1, 6, 2, 8, torch.bfloat16)
    sinks = torch.tensor([1.0, -1.0])
    exact = oracle(q, k, v, sinks=sinks)
    shrunk = oracle(q, k, v) * torch.sigmoid(oracle_lse(q, k) - sinks[:, None]).mT[..., None]
    close(exact, shrunk)
