# SPDX-License-Identifier: Apache-2.0
"""Calls of MLA decoding, whose v is the first columns of k, and how their results are judged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.choose.choice import Choice, Rule
from flash_attention.families.parse import parse_kernel_config
from flash_attention.families.recipe import Setting
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.mla import splits
from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig
from flash_attention.families.sm90.mla.features import ctas_of
from flash_attention.families.sm90.split_v import BLOCK_KEYS
from flash_attention.launch import plan as plans
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import check_lse, check_output, cu_seqlens
from tests.decode_cases import FAR, in_pages, shuffled_table


def config(text: str) -> HopperMlaKernelConfig:
    """The config with a short form without its prefix."""
    parsed = parse_kernel_config(f"hopper_mla{text}")
    assert isinstance(parsed, HopperMlaKernelConfig)
    return parsed


NARROW = config("(BF16, 128): lazy_8")  # like the others, but faster to emulate
FULL = config("(BF16, 512): lazy_8+rotary_in_registers")
FULL_FP16 = config("(FP16, 512): lazy_8+rotary_in_registers")
EVERY_BLOCK = config("(BF16, 256): plain")
DEFERRED = config("(BF16, 128): lazy_8+rotary_in_registers+defer_values")


@dataclass(frozen=True)
class Case:
    """The shapes of a call, its keywords, how its keys are split, and what makes it special."""

    seq_q: int = 1
    seq_k: int = 330
    heads: int = 16
    batch: int = 1
    queries: tuple[int, ...] | None = None  # of packed sequences; seq_q is the most of one
    used: tuple[int, ...] | None = None  # keys that count; NaN lies behind them
    page_keys: int = 0
    split_keys: int = 0
    ctas: int = 0  # among which the keys are split evenly
    causal: bool = False
    window: tuple[int, int] | None = None
    softcap: float = 0.0
    softmax_scale: float | None = None
    sinks: bool = False
    sharp: bool = False  # the maximum of a row keeps rising, also by more than float32 resolves
    large: float = 1.0  # a factor of all scores

    def make(self, d_v: int, dtype: torch.dtype = torch.bfloat16, device: str = "cpu") -> MadeCase:
        """The case with random tensors."""
        return _made(self, d_v, dtype, device)


@dataclass(frozen=True)
class MadeCase:
    """The tensors of a case as a reference takes them, and the call of a kernel."""

    case: Case
    q: Tensor
    k: Tensor
    keywords: dict[str, Any]
    call: Call

    @property
    def v(self) -> Tensor:
        return self.k[..., : self.call.v.shape[-1]]

    def plan(self, config: HopperMlaKernelConfig) -> Plan:
        """The plan of the call, its keys split as the case says."""

        def choose(problem: Problem, setting: Setting, *given: Any, **asked: Any) -> Choice:
            return Choice(config, replace(setting, split=self.kv_splits(problem)), Rule.GIVEN)

        with patch.object(plans, "choose", choose):
            return Plan(self.call, config)

    def kv_splits(self, problem: Problem) -> KvSplits:
        """The splits that the case says, or one per tile."""
        if self.case.split_keys:
            return splits.of_keys(problem, self.case.split_keys)
        if not self.case.ctas:
            return splits.whole(problem)
        return KvSplits.even(
            *(problem, BLOCK_KEYS, self.case.ctas, 1),
            heads_together=problem.heads,
            consumers=ctas_of(problem),
        )

    def assert_right(self, out: Tensor, lse: Tensor | None) -> None:
        """Within the tolerance of 16-bit attention."""
        check = check_output(out, self.q, self.k, self.v, **self.keywords)
        assert check.ok, str(check)
        if lse is not None:
            of_lse = check_lse(lse, self.q, self.k, **self.keywords)
            assert of_lse.ok, str(of_lse)


@cache
def _made(case: Case, d_v: int, dtype: torch.dtype, device: str) -> MadeCase:
    generator = torch.Generator().manual_seed(7)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    rows = (case.batch, case.seq_q) if case.queries is None else (sum(case.queries),)
    q = drawn(*rows, case.heads, d_v + 64) * case.large
    k = drawn(case.batch, case.seq_k, 1, d_v + 64)
    if case.sharp:
        q *= 6
        k *= torch.linspace(1.5, 0.5, case.seq_k)[:, None, None]  # the last keys come first
    keywords: dict[str, Any] = {
        "causal": case.causal,
        "window": case.window,
        "softcap": case.softcap,
        "softmax_scale": case.softmax_scale,
        "sinks": drawn(case.heads).to(device) if case.sinks else None,
    }
    if case.queries is not None:
        keywords["cu_seqlens_q"] = cu_seqlens(case.queries).to(device)
        keywords["max_seqlen_q"] = case.seq_q
    if case.used is not None:
        keywords["seqused_k"] = torch.tensor(case.used, dtype=torch.int32).to(device)
        for entry, used in zip(k, case.used, strict=True):
            entry[used:] = torch.nan
    q, k = q.to(device, dtype), k.to(device, dtype)
    cache = k
    asked: dict[str, Any] = {"split_keys": case.split_keys or None}
    if case.page_keys:
        table = shuffled_table(case.batch, case.seq_k // case.page_keys, device)
        cache = in_pages(k, table, case.page_keys)
        for row, used in zip(table, case.used or (), strict=True):
            row[-(-used // case.page_keys) :] = FAR
        asked["block_table"] = table
    call = Call(q, cache, cache[..., :d_v], **keywords, **asked, return_lse=True)
    return MadeCase(case, q, k, keywords, call)


MIXED = (320, 65, 0, 64)
CASES = {
    "one query": (NARROW, Case()),
    "two blocks": (NARROW, Case(seq_k=128)),
    "one key": (NARROW, Case(seq_k=1)),
    "128 heads": (NARROW, Case(heads=128, seq_k=200)),
    "96 heads, two queries": (NARROW, Case(2, 200, heads=96, causal=True)),
    "24 heads, three queries": (NARROW, Case(3, 200, heads=24, causal=True)),
    "one head": (NARROW, Case(3, 70, heads=1)),
    "four queries": (NARROW, Case(4, 330, heads=16, batch=2, causal=True)),
    "more queries than a tile": (NARROW, Case(9, 130, heads=16, causal=True)),
    "three queries of 64 heads": (NARROW, Case(3, 200, heads=64, batch=2, ctas=3, causal=True)),
    "more queries than CTAs": (NARROW, Case(5, 100, heads=128, causal=True)),
    "fewer keys than queries": (NARROW, Case(9, 4, heads=16, causal=True)),
    "splits": (NARROW, Case(2, 330, batch=2, split_keys=128, causal=True)),
    "splits of 128 heads": (NARROW, Case(2, 330, heads=128, split_keys=64, causal=True)),
    "stream-K": (NARROW, Case(2, 330, batch=3, ctas=4, causal=True)),
    "stream-K to more than there are": (NARROW, Case(1, 330, batch=2, ctas=50)),
    "stream-K, 128 heads": (NARROW, Case(1, 330, heads=128, batch=2, ctas=3)),
    "lengths": (NARROW, Case(2, 320, batch=4, used=MIXED, causal=True)),
    "lengths, stream-K": (NARROW, Case(2, 320, batch=4, used=MIXED, ctas=5, causal=True)),
    "pages of 64": (NARROW, Case(2, 320, batch=4, used=MIXED, page_keys=64, causal=True)),
    "pages of 16": (NARROW, Case(1, 320, batch=4, used=MIXED, page_keys=16, split_keys=128)),
    "pages of 1": (NARROW, Case(1, 70, batch=2, used=(70, 3), page_keys=1)),
    "pages, stream-K": (
        NARROW,
        Case(2, 320, heads=128, batch=4, used=MIXED, page_keys=64, ctas=5, causal=True),
    ),
    "packed": (NARROW, Case(3, 330, batch=3, queries=(3, 1, 2), causal=True)),
    "packed, one query each": (NARROW, Case(1, 200, heads=128, batch=3, queries=(1, 1, 1))),
    "packed, some without queries": (
        NARROW,
        Case(9, 130, batch=5, queries=(0, 9, 0, 1, 0), causal=True),
    ),
    "packed, stream-K": (
        NARROW,
        Case(5, 330, heads=128, batch=4, queries=(1, 5, 0, 2), ctas=3, causal=True),
    ),
    "packed, splits": (
        NARROW,
        Case(7, 330, heads=24, batch=3, queries=(2, 7, 1), split_keys=128, causal=True, sinks=True),
    ),
    "packed, pages": (
        NARROW,
        Case(4, 320, batch=4, queries=(1, 4, 2, 0), used=MIXED, page_keys=16, causal=True),
    ),
    "packed, pages, stream-K": (
        NARROW,
        Case(
            *(4, 320, 128, 4, (4, 1, 2, 3)),
            used=MIXED,
            page_keys=64,
            ctas=5,
            window=(100, 0),
            sharp=True,
        ),
    ),
    "packed, deferred": (DEFERRED, Case(6, 330, batch=2, queries=(6, 2), ctas=4, causal=True)),
    "sharp": (NARROW, Case(seq_k=700, sharp=True)),
    "sharp, stream-K": (NARROW, Case(4, 700, sharp=True, ctas=3, causal=True)),
    "sharp, every block": (EVERY_BLOCK, Case(seq_k=330, sharp=True)),
    "large scores": (NARROW, Case(seq_k=400, large=3e3)),
    "large scores, every block": (EVERY_BLOCK, Case(seq_k=400, large=3e3)),
    "window": (NARROW, Case(2, 700, window=(200, 0), ctas=3)),
    "softcap": (NARROW, Case(softcap=3.0)),
    "sinks": (NARROW, Case(sinks=True)),
    "sinks, splits": (NARROW, Case(sinks=True, split_keys=64, batch=2)),
    "scale": (NARROW, Case(softmax_scale=0.3)),
    "deferred": (DEFERRED, Case(4, 330, batch=2, causal=True)),
    "deferred, one block": (DEFERRED, Case(seq_k=60)),
    "deferred, stream-K": (
        DEFERRED,
        Case(2, 320, heads=128, batch=4, used=MIXED, page_keys=64, ctas=5, causal=True, sharp=True),
    ),
    "512 columns": (FULL, Case(seq_k=200)),
    "512 columns, 128 heads, pages": (
        FULL,
        Case(2, 256, heads=128, batch=2, used=(130, 256), page_keys=64, ctas=2, causal=True),
    ),
    "512 columns, packed": (
        FULL,
        Case(2, 200, heads=128, batch=2, queries=(1, 2), used=(130, 200), ctas=3, causal=True),
    ),
    "512 columns, fp16": (FULL_FP16, Case(2, 200, heads=32, causal=True)),
}
"""A config, and a call that it runs."""
