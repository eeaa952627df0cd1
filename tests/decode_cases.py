# SPDX-License-Identifier: Apache-2.0
"""Calls with few queries of many keys, and their keys put into pages."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.call.call import Call
from tests.feature_cases import Case, MadeCase
from tests.gate import EXHAUSTIVE

FAR = 10**6  # a page that no tensor has
MIXED = (300, 129, 0)


@dataclass(frozen=True)
class DecodeCase:
    """A call, how long the splits of its keys are, and its pages if it has them."""

    name: str
    case: Case
    split_keys: int
    num_splits: int
    page_keys: int = 0

    def make(self, device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> MadeCase:
        return self.case.make(device, dtype)

    def tensors(self, made: MadeCase) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as the kernel gets them."""
        if not self.page_keys:
            return made.q, made.k, made.v
        table = self._table(made.k)
        k, v = (in_pages(t, table, self.page_keys) for t in (made.k, made.v))
        return made.q, k, v

    def arguments(self, made: MadeCase) -> dict[str, Any]:
        given = made.arguments | {"split_keys": self.split_keys}
        if self.page_keys:
            assert self.case.used is not None
            table = self._table(made.k).clone()
            for row, used in zip(table, self.case.used, strict=True):
                row[-(-used // self.page_keys) :] = FAR
            given["block_table"] = table
        return given

    def call(self, made: MadeCase) -> Call:
        """The call of the case, its keys in splits."""
        return Call(*self.tensors(made), **self.arguments(made))

    def _table(self, k: Tensor) -> Tensor:
        return shuffled_table(k.shape[0], k.shape[1] // self.page_keys, k.device)


def shuffled_table(batch: int, pages: int, device: torch.device | str = "cpu") -> Tensor:
    """Every page of every entry somewhere else."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(batch * pages, generator=generator).to(torch.int32)
    return table.reshape(batch, pages).to(device)


def in_pages(tensor: Tensor, table: Tensor, page_keys: int) -> Tensor:
    """A (batch, seq, heads, d) tensor as the (pages, page_keys, heads, d) that `table` names."""
    pages = torch.empty(
        (table.numel(), page_keys, *tensor.shape[2:]), dtype=tensor.dtype, device=tensor.device
    )
    pages[table.flatten().long()] = tensor.unflatten(1, (-1, page_keys)).flatten(0, 1)
    return pages


SEVEN: dict[str, Any] = {"heads": 14, "heads_k": 2}
EACH: dict[str, Any] = {"heads": 4, "heads_k": 4}
FOUR: dict[str, Any] = {"heads": 8, "heads_k": 2}

DECODE_CASES = [
    DecodeCase("one query, one split", Case("", 1, 300, batch=2, **FOUR), 320, 1),
    DecodeCase("one query, splits", Case("", 1, 300, batch=2, **FOUR), 64, 5),
    DecodeCase("seven heads a group", Case("", 3, 130, **SEVEN, causal=True), 128, 2),
    DecodeCase("heads of their own", Case("", 16, 300, **EACH, causal=True), 64, 5),
    DecodeCase("as many queries as keys", Case("", 16, 16, **EACH, causal=True), 64, 1),
    DecodeCase("more queries than keys", Case("", 16, 9, **FOUR, causal=True, sinks=True), 64, 1),
    DecodeCase("several tiles of queries", Case("", 40, 200, **FOUR, causal=True), 128, 2),
    DecodeCase("several tiles of 63 rows", Case("", 10, 130, **SEVEN, causal=True), 64, 3),
    DecodeCase("d 256 and d_v 136", Case("", 2, 130, 256, 136, **FOUR), 64, 3),
    DecodeCase("d 128 and d_v 72", Case("", 3, 200, 128, 72, **FOUR, causal=True), 128, 2),
    DecodeCase(
        "lengths around a border",
        Case("", 3, 192, batch=5, used=(127, 128, 129, 64, 1), **FOUR, causal=True),
        *(64, 3),
    ),
    DecodeCase(
        "splits without keys", Case("", 16, 320, batch=3, used=MIXED, **FOUR, causal=True), 64, 5
    ),
    DecodeCase(
        "a window within a split",
        Case("", 3, 320, batch=3, used=MIXED, **FOUR, window=(20, 0)),
        64,
        5,
    ),
    DecodeCase(
        "a window across borders, queries of many places",
        Case("", 16, 300, **EACH, window=(70, 5), sinks=True),
        *(64, 5),
    ),
    DecodeCase(
        "sinks and a softcap",
        Case("", 1, 320, batch=3, used=MIXED, **SEVEN, sinks=True, softcap=5.0),
        *(128, 3),
    ),
    DecodeCase(
        "pages of 16", Case("", 3, 320, batch=3, used=MIXED, **SEVEN, causal=True), 64, 5, 16
    ),
    DecodeCase(
        "pages of 64", Case("", 1, 320, batch=3, used=MIXED, **FOUR, sinks=True), 128, 3, 64
    ),
    DecodeCase(
        "pages of 256",
        Case("", 16, 512, batch=3, used=(511, 257, 0), **EACH, window=(100, 3), softcap=4.0),
        *(256, 2, 256),
    ),
    DecodeCase("pages of 1", Case("", 3, 200, batch=3, used=(200, 65, 0), **SEVEN), 64, 4, 1),
    DecodeCase(
        "pages of 24", Case("", 2, 144, batch=2, used=(144, 50), **FOUR, causal=True), 64, 3, 24
    ),
    DecodeCase(
        "pages of 32, d 128", Case("", 1, 96, 128, 128, batch=2, used=(96, 33), **FOUR), 64, 2, 32
    ),
]

# Every other case, in one launch, in two or in both. The others are tried with other splits in
# tests/families/sm90/forward/test_splits.py.
ALWAYS: dict[DecodeCase, tuple[int, ...]] = dict(
    zip(DECODE_CASES[::2], cycle(((1, 2), (1,), (2,))), strict=False)
)
IN_LAUNCHES = [
    *(pytest.param(case, count, id=f"{case.name}-{count}") for case, count in ALWAYS.items()),
    *(
        pytest.param(case, (1, 2), id=f"{case.name}-(1, 2)", marks=EXHAUSTIVE)
        for case in DECODE_CASES
        if ALWAYS.get(case) != (1, 2)
    ),
]
