# SPDX-License-Identifier: Apache-2.0
"""The problems that attention kernels are compared at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flash_attention.bench.ladder_run import GRIDS as LADDER_GRIDS
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention.options import Options
from flash_attention.problem import Problem

TOKENS, HIDDEN = 16384, 2048  # of every problem of the fa3 grid
SEED_SHAPES = {seq_len: batch for batch, seq_len in LADDER_GRIDS["seed"]}
SEED_HEADS = 16


@dataclass(frozen=True)
class Point:
    """One problem: self-attention, unless keys have a length or heads of their own."""

    d_head: int
    causal: bool
    seq_len: int
    batch: int
    heads: int
    heads_k: int | None = None
    seq_k: int | None = None

    @property
    def flop(self) -> int:
        """4 b h sq sk d, half of it under a causal mask, as everyone counts."""
        keys = self.seq_k or self.seq_len
        whole = 4 * self.batch * self.heads * self.seq_len * keys * self.d_head
        return whole // 2 if self.causal else whole

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.seq_len, self.heads, self.d_head)

    def problem(self, dtype: DType) -> Problem:
        keys, heads_k = self.seq_k or self.seq_len, self.heads_k or self.heads
        q = torch.empty(self.shape, dtype=dtype.to_torch_dtype(), device="meta")
        k = q.new_empty((self.batch, keys, heads_k, self.d_head))
        return Problem.from_tensors(q, k, k, options=Options(causal=self.causal))


@dataclass(frozen=True)
class Grid:
    """Points by head dimension, mask and length."""

    dtype: DType
    d_heads: tuple[int, ...]
    masks: tuple[bool, ...]  # causal or not
    seq_lens: tuple[int, ...]


GRIDS = {
    "fa3": Grid(DType.BF16, (64, 128, 256), (False, True), tuple(512 << i for i in range(6))),
    "seed": Grid(DType.FP16, (128,), (False,), tuple(SEED_SHAPES)),
}
"""What a grid measures unless told otherwise: that of FlashAttention-3's paper, the ladder's."""


def points(
    name: str, d_heads: Sequence[int], masks: Sequence[bool], seq_lens: Sequence[int]
) -> list[Point]:
    """The points of the grid called `name`, at these head dimensions, masks and lengths."""
    point = _fa3_point if name == "fa3" else _seed_point
    return [point(d, causal, seq) for d in d_heads for causal in masks for seq in seq_lens]


def _fa3_point(d_head: int, causal: bool, seq_len: int) -> Point:
    if TOKENS % seq_len or HIDDEN % d_head:
        raise UnsupportedError(
            f"lengths of the fa3 grid divide {TOKENS} and its head dimensions {HIDDEN};"
            f" {seq_len} and {d_head} do not"
        )
    return Point(d_head, causal, seq_len, TOKENS // seq_len, HIDDEN // d_head)


def _seed_point(d_head: int, causal: bool, seq_len: int) -> Point:
    if seq_len not in SEED_SHAPES:
        known = ", ".join(map(str, SEED_SHAPES))
        raise UnsupportedError(f"the seed grid has the lengths {known}, not {seq_len}")
    return Point(d_head, causal, seq_len, SEED_SHAPES[seq_len], SEED_HEADS)
