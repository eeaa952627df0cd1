# SPDX-License-Identifier: Apache-2.0
"""A point of a grid with its tensors, the call that computes it, and the check of outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from flash_attention.attention import attention
from flash_attention.call.call import Call, Keywords
from flash_attention.forward import forward
from flash_attention.kernel_configs import DType, KernelConfig
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import plan_for
from flash_attention.reference.judge import cu_seqlens, generate_qkv
from flash_attention.reference.part_judge import PartJudge
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.bench.timing import Contender


@dataclass(frozen=True, eq=False)
class Case:
    """One problem in memory. q, k and v are (batch, seq, heads, d), packed (total, heads, d)."""

    point: Point
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    starts: Tensor | None  # cu_seqlens of packed sequences

    @classmethod
    def of(cls, point: Point, dtype: DType, device: torch.device | str = "cpu") -> Case:
        """Normally distributed q, k and v, and an output full of NaN."""
        batch, queries, keys = _sizes(point)
        tensors = generate_qkv(
            *(batch, queries, point.heads, point.d_head, dtype, device),
            seq_len_k=keys,
            n_heads_k=point.kv_heads,
        )
        q, k, v = (tensor[0] if point.lengths else tensor for tensor in tensors)
        starts = cu_seqlens(point.lengths, device) if point.lengths else None
        return cls(point, q, k, v, torch.full_like(q, math.nan), starts)

    @classmethod
    def unwritten(cls, point: Point, dtype: DType) -> Case:
        """Tensors without memory."""
        batch, queries, keys = _sizes(point)
        before = () if point.lengths else (batch,)
        new = partial(torch.empty, dtype=dtype.to_torch_dtype(), device="meta")
        q, out = (new(*before, queries, point.heads, point.d_head) for _ in "qo")
        k, v = (new(*before, keys, point.kv_heads, point.d_head) for _ in "kv")
        starts = cu_seqlens(point.lengths, "meta") if point.lengths else None
        return cls(point, q, k, v, out, starts)

    @property
    def window(self) -> tuple[int, int] | None:
        """(left, right) as `attention` takes it."""
        return (self.point.window - 1, 0) if self.point.window else None

    @property
    def keywords(self) -> Keywords:
        """The keywords of `attention` for this case."""
        keywords: Keywords = {"causal": self.point.causal, "window": self.window}
        if self.starts is not None:
            longest = self.point.seq_len
            keywords |= {"cu_seqlens_q": self.starts, "cu_seqlens_k": self.starts}
            keywords |= {"max_seqlen_q": longest, "max_seqlen_k": longest}
        return keywords

    def plan(self) -> Plan:
        """What `attention` launches for this case: the config it selects, and its split."""
        return plan_for(Call(self.q, self.k, self.v, self.out, **self.keywords))

    def selected(self, name: str) -> Contender:
        """The contender that calls `attention`."""
        keywords = self.keywords
        return Contender(
            name,
            run=lambda: attention(self.q, self.k, self.v, out=self.out, **keywords),
            poison=self.poison,
        )

    def kernel(self, config: KernelConfig) -> Contender:
        """The contender for a given config, named by its short form."""
        keywords = self.keywords
        return Contender(
            config.short_form(),
            run=lambda: forward(config, self.q, self.k, self.v, self.out, **keywords),
            poison=self.poison,
        )

    def poison(self) -> None:
        self.out.fill_(math.nan)

    def judge(self) -> PartJudge:
        return PartJudge(self.q, self.k, self.v, cells=self.point.cells, **self.keywords)

    def without_window(self) -> Case:
        """Return the same tensors with a causal mask only."""
        return replace(self, point=replace(self.point, window=0))


def _sizes(point: Point) -> tuple[int, int, int]:
    """The batch, the rows of q and those of k; packed sequences are one after the other."""
    rows = sum(point.lengths)
    return (1, rows, rows) if rows else (point.batch, point.queries, point.seq_len)
