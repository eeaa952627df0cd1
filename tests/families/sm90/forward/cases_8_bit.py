# SPDX-License-Identifier: Apache-2.0
"""Calls with keys and values of 8 bits, queries of 16 or 8, and their results judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.results import BLOCK_DIMS, output_dtype
from flash_attention.reference.formula import dequantised, without_pages
from flash_attention.reference.judge import check_lse, check_output, cu_seqlens
from flash_attention.reference.oracle import oracle

E4M3 = torch.float8_e4m3fn
MOST_RMS = 4e-3  # of the error relative to the output, which is bfloat16


@dataclass(frozen=True)
class Case:
    """The shapes of a call, and what makes it special."""

    seq_q: int = 2
    seq_k: int = 300
    heads: int = 4
    heads_k: int = 2
    batch: int = 1
    d: int = 128
    d_v: int = 0  # 0: that of q and k
    dtype: torch.dtype = torch.bfloat16
    page: int = 0  # keys of a page; 0: dense
    used: tuple[int, ...] = ()  # keys of each sequence
    lengths_q: tuple[int, ...] = ()  # of packed queries
    lengths_k: tuple[int, ...] = ()
    sinks: bool = False
    per_head: bool = True  # descale factors
    blocks: int = 0  # descale factors for blocks of keys
    sharp: bool = False  # the maximum of a row keeps rising
    q_8_bit: bool = False
    keywords: tuple[tuple[str, Any], ...] = ()

    def call(self, device: str = "cpu") -> Call:
        """The call. What no sequence uses is NaN."""
        generator = torch.Generator().manual_seed(7)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        rows_q = (sum(self.lengths_q),) if self.lengths_q else (self.batch, self.seq_q)
        rows_k = (sum(self.lengths_k),) if self.lengths_k else (self.batch, self.seq_k)
        q = drawn(*rows_q, self.heads, self.d).to(self.dtype)
        k = drawn(*rows_k, self.heads_k, self.d)
        v = drawn(*rows_k, self.heads_k, self.d_v or self.d)
        if self.sharp:
            q, k[:, ::97] = q * 3, k[:, ::97] * 3
        of = (self.batch, self.heads_k) if self.per_head else (1,)
        of_keys = (*of, self.blocks) if self.blocks else of
        extras: dict[str, Any] = {
            name: torch.rand(of_keys, generator=generator) + 0.5
            for name in ("k_descale", "v_descale")
        }
        if self.q_8_bit:
            q, extras["q_descale"] = q.to(E4M3), torch.rand(of, generator=generator) + 0.5
        if self.sinks:
            extras["sinks"] = drawn(self.heads)
        for name, lengths in (("q", self.lengths_q), ("k", self.lengths_k)):
            if lengths:
                extras[f"cu_seqlens_{name}"] = cu_seqlens(lengths)
        if self.used:
            extras["seqused_k"] = torch.tensor(self.used, dtype=torch.int32)
            for entry, used in enumerate(self.used):
                k[entry, used:] = v[entry, used:] = torch.nan
        if self.page:
            k, v, extras["block_table"] = _in_pages(k, v, self.page, generator)
        q, k, v = (t.to(device) for t in (q, k.to(E4M3), v.to(E4M3)))
        given: dict[str, Any] = {name: t.to(device) for name, t in extras.items()}
        for name, lengths in (("q", self.lengths_q), ("k", self.lengths_k)):
            if lengths:
                given[f"max_seqlen_{name}"] = max(lengths)
        return Call(q, k, v, **given, **dict(self.keywords), return_lse=True)


def _in_pages(
    k: Tensor, v: Tensor, page: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """The keys in pages in any order, and the table that lists them."""
    batch, keys = k.shape[:2]
    count = batch * (keys // page)
    order = torch.randperm(count, generator=generator)
    table = torch.empty(count, dtype=torch.int32)
    table[order] = torch.arange(count, dtype=torch.int32)
    k, v = (t.reshape(count, page, *t.shape[2:])[order].contiguous() for t in (k, v))
    return k, v, table.reshape(batch, -1)


def rounded(call: Call) -> Call:
    """The call with k and v multiplied by their factors, and rounded to 16 bits. q is as well, and
    has no bits to lose if its factor is 1."""
    wide = dequantised(without_pages(call), torch.float32)
    q, k, v = (t.to(output_dtype(call.q)) for t in wide[:3])
    return wide._replace(q=q, k=k, v=v)


def assert_right(call: Call, out: Tensor, lse: Tensor | None, most_rms: float = MOST_RMS) -> None:
    """Judge the results of a call."""
    assert call.k_descale is not None
    if call.k_descale.ndim == len(BLOCK_DIMS):
        call = rounded(call)
    check = check_output(out, *call[:3], **call.keywords())
    assert check.ok, check
    if call.q.dtype == E4M3:  # the judge allows weights of 8 bits, and these have 16
        exact = oracle(*call[:3], **call.keywords())
        assert (out.double() - exact).norm() <= most_rms * exact.norm()
    assert lse is not None
    of_lse = check_lse(lse, call.q, call.k, **call.keywords())
    assert of_lse.ok, of_lse


CAUSAL = (("causal", True),)
CASES = {
    "decoding": Case(1, 700, heads=8, batch=2),
    "decoding, whole": Case(1, 100, batch=2),
    "several queries, causal": Case(3, 700, keywords=CAUSAL, sharp=True),
    "splits of a given length": Case(1, 400, keywords=(("split_keys", 128),)),
    "fp16": Case(1, 300, dtype=torch.float16),
    "one factor for all": Case(2, 300, per_head=False),
    "sinks, split": Case(1, 700, sinks=True),
    "decoding, pages of 16": Case(1, 320, batch=3, page=16, used=(320, 0, 77)),
    "decoding, pages of 64": Case(2, 384, batch=2, page=64, used=(65, 384), keywords=CAUSAL),
    "decoding, pages of 1": Case(1, 140, batch=2, page=1, used=(139, 3)),
    "decoding, pages of 6": Case(1, 144, batch=2, d=64, page=6, used=(139, 3)),
    "decoding, d 256": Case(1, 200, d=256),
    "decoding, d 80": Case(1, 200, d=80),
    "decoding, d 96 and 48": Case(1, 200, d=96, d_v=48),
    "prefill": Case(140, 300),
    "prefill, fp16, d 64": Case(200, 330, d=64, dtype=torch.float16),
    "prefill, causal": Case(200, 330, keywords=CAUSAL, sharp=True),
    "prefill, d 256": Case(140, 200, heads=1, heads_k=1, d=256),
    "prefill, d 160": Case(140, 200, heads=1, heads_k=1, d=160),
    "prefill, d 192": Case(140, 200, heads=1, heads_k=1, d=192, keywords=CAUSAL),
    "window": Case(300, 330, heads=2, heads_k=1, keywords=(("window", (90, 20)),)),
    "softcap": Case(140, 200, keywords=(("softcap", 3.0),)),
    "sinks": Case(140, 200, sinks=True),
    "prefill, lengths": Case(140, 330, batch=3, used=(330, 0, 65), keywords=CAUSAL),
    "prefill, pages": Case(140, 320, batch=2, page=32, used=(320, 150), keywords=CAUSAL),
    "packed": Case(batch=3, lengths_q=(5, 0, 140), lengths_k=(70, 10, 200), keywords=CAUSAL),
    "packed queries, pages": Case(
        seq_k=320, batch=3, lengths_q=(1, 130, 4), page=16, used=(320, 200, 0), keywords=CAUSAL
    ),
    "q of 8 bits, decoding": Case(3, 700, heads=8, batch=2, keywords=CAUSAL, q_8_bit=True),
    "q of 8 bits, one factor": Case(1, 200, d=96, d_v=48, per_head=False, q_8_bit=True),
    "q of 8 bits, three heads together": Case(2, 200, heads=6, q_8_bit=True),
    "q of 8 bits, pages": Case(1, 320, batch=3, page=16, used=(320, 0, 77), q_8_bit=True),
    "q of 8 bits, packed": Case(
        batch=3, lengths_q=(5, 0, 30), lengths_k=(70, 10, 200), keywords=CAUSAL, q_8_bit=True
    ),
    "q of 8 bits, packed, pages": Case(
        seq_k=320, batch=3, lengths_q=(1, 30, 4), page=16, used=(320, 200, 0), q_8_bit=True
    ),
    "blocks, decoding": Case(1, 700, heads=8, batch=2, blocks=6),
    "blocks, more than keys": Case(1, 100, dtype=torch.float16, blocks=4),
    "blocks, pages": Case(1, 320, batch=3, page=16, used=(320, 0, 77), blocks=3),
    "blocks, prefill": Case(200, 330, keywords=CAUSAL, blocks=3),
    "blocks that key blocks do not divide": Case(
        140, 400, heads=1, heads_k=1, d=160, keywords=CAUSAL, blocks=4
    ),
    "blocks, packed": Case(
        batch=3, lengths_q=(5, 0, 140), lengths_k=(70, 10, 200), keywords=CAUSAL, blocks=2
    ),
}
