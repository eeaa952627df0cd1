# SPDX-License-Identifier: Apache-2.0
"""The problems that attention kernels are compared at."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import DType

TOKENS, HIDDEN = 16384, 2048  # of every problem of the fa3 grid
SEED_SHAPES = {512: 16, 1024: 16, 2048: 16, 4096: 16, 8192: 8, 16384: 4}  # batch by length
SEED_HEADS = 16
GQA_HEADS, GQA_HEADS_K = 32, 8
TRAINED_HEADS, TRAINED_HEADS_K = 64, 8  # of the backward_gqa grid
DECODE_BATCHES, DECODE_KEYS = (1, 4, 16, 64), (512, 2048, 8192, 65536)
MOST_DECODE_KEYS = 1 << 19  # of all sequences
MOST_DECODED = 64  # queries of a sequence that decodes
WINDOWS = (1024, 2048, 4096)
PACKED_ENTRIES, SHORTEST_PACKED = 16, 64


class Measured(Enum):
    """What a grid measures. The value is how many times the FLOP of a forward pass it takes."""

    FORWARD = 1.0  # two products
    BACKWARD = 2.5  # five products
    TANGENT = 3.0  # six products
    TRAINING = 3.5  # both passes, through autograd

    @property
    def words(self) -> str:
        """The pass in words."""
        return "forward and backward" if self is Measured.TRAINING else self.name.lower()

    @property
    def pass_(self) -> Pass:
        """The pass whose kernels are compared."""
        return Pass.BACKWARD if self is Measured.TRAINING else Pass[self.name]


@dataclass(frozen=True)
class Point:
    """One attention problem: self-attention of one length unless it says more."""

    d_head: int
    causal: bool
    seq_len: int  # number of keys; of the longest packed sequence
    batch: int
    heads: int
    heads_k: int = 0  # 0: as many as heads
    seq_q: int = 0  # 0: as many queries as keys
    window: int = 0  # keys that a query sees up to its own; 0: no limit
    lengths: tuple[int, ...] = ()  # of packed sequences, for queries and keys

    @property
    def queries(self) -> int:
        return self.seq_q or self.seq_len

    @property
    def kv_heads(self) -> int:
        return self.heads_k or self.heads

    @property
    def chunk(self) -> bool:
        """Whether there are fewer queries than keys, of which they are the last."""
        return self.queries < self.seq_len

    @property
    def decode(self) -> bool:
        """Whether there are so few queries that K and V are the traffic."""
        return self.chunk and self.queries <= MOST_DECODED

    @property
    def cells(self) -> int:
        """The number of scores of one head, masked or not."""
        if self.lengths:
            return sum(length**2 for length in self.lengths)
        return self.batch * self.queries * self.seq_len

    @property
    def flop(self) -> int:
        """4 b h sq sk d, less half of what a causal mask cuts, as everyone counts; of a window, the
        keys in it."""
        return 4 * self.heads * self.d_head * self._counted_cells()

    def _counted_cells(self) -> int:
        if not self.window:
            return (2 * self.cells - self._masked_squares()) // 2 if self.causal else self.cells
        rows = range(self.seq_len - self.queries, self.seq_len)
        return self.batch * sum(min(row + 1, self.window) for row in rows)

    def _masked_squares(self) -> int:
        """The scores of which a causal mask leaves half: those of each sequence's last keys."""
        return self.cells if self.lengths else self.batch * self.queries**2

    def kv_bytes(self, dtype: DType) -> int:
        """K and V, each read once."""
        rows = sum(self.lengths) or self.batch * self.seq_len
        return 2 * rows * self.kv_heads * self.d_head * dtype.itemsize

    def problem(self, dtype: DType) -> Problem:
        """The problem as kernels are selected for it."""
        rows = sum(self.lengths)
        shapes = (
            (*((rows,) if rows else (self.batch, length)), heads, self.d_head)
            for length, heads in ((self.queries, self.heads), (self.seq_len, self.kv_heads))
        )
        q, k = (torch.empty(s, dtype=dtype.to_torch_dtype(), device="meta") for s in shapes)
        starts = torch.empty(self.batch + 1, device="meta") if rows else None
        longest = self.seq_len if rows else None
        call = Call(
            *(q, k, k),
            cu_seqlens_q=starts,
            cu_seqlens_k=starts,
            causal=self.causal,
            window=(self.window - 1, 0) if self.window else None,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
        )
        return Problem.of(call)

    @property
    def label(self) -> str:
        """The problem in a few words, for a line of a table."""
        shared = "" if self.kv_heads == self.heads else f"/{self.kv_heads}"
        rows = f"{self.batch} x {self.seq_len}"
        if self.lengths:
            rows = f"{sum(self.lengths)} in {len(self.lengths)}"
        queries = f", {self.seq_q} q" if self.chunk else ""
        mask = f"window {self.window}" if self.window else "causal" if self.causal else "full"
        return f"{rows}{queries}, {self.heads}{shared} h, d {self.d_head}, {mask}"


@dataclass(frozen=True)
class Grid:
    """Points by head dimension, mask and length, and what is measured unless told otherwise."""

    dtype: DType
    d_heads: tuple[int, ...]
    masks: tuple[bool, ...]  # causal or not
    seq_lens: tuple[int, ...]
    make: Callable[[int, bool, int], list[Point]]
    measured: Measured = Measured.FORWARD

    def points(
        self,
        d_heads: Sequence[int] | None = None,
        masks: Sequence[bool] | None = None,
        seq_lens: Sequence[int] | None = None,
    ) -> list[Point]:
        """The points at these head dimensions, masks and lengths, or at the grid's own."""
        return [
            point
            for d in d_heads or self.d_heads
            for causal in (self.masks if masks is None else masks)
            for seq in seq_lens or self.seq_lens
            for point in self.make(d, causal, seq)
        ]


def _fa3(d_head: int, causal: bool, seq_len: int) -> list[Point]:
    if TOKENS % seq_len or HIDDEN % d_head:
        raise UnsupportedError(
            f"lengths of the fa3 grid divide {TOKENS} and its head dimensions {HIDDEN};"
            f" {seq_len} and {d_head} do not"
        )
    return [Point(d_head, causal, seq_len, TOKENS // seq_len, HIDDEN // d_head)]


def _seed(d_head: int, causal: bool, seq_len: int) -> list[Point]:
    if seq_len not in SEED_SHAPES:
        known = ", ".join(map(str, SEED_SHAPES))
        raise UnsupportedError(f"the seed grid has the lengths {known}, not {seq_len}")
    return [Point(d_head, causal, seq_len, SEED_SHAPES[seq_len], SEED_HEADS)]


def _prefill_gqa(d_head: int, causal: bool, seq_len: int) -> list[Point]:
    batch = max(1, TOKENS // seq_len)
    return [Point(d_head, causal, seq_len, batch, GQA_HEADS, GQA_HEADS_K)]


def _backward_gqa(d_head: int, causal: bool, seq_len: int) -> list[Point]:
    batch = max(1, TOKENS // seq_len)
    return [Point(d_head, causal, seq_len, batch, TRAINED_HEADS, TRAINED_HEADS_K)]


def _varlen(d_head: int, causal: bool, seq_len: int) -> list[Point]:
    """Packed sequences of fixed random lengths up to `seq_len`, without and with GQA."""
    draw = random.Random(seq_len)
    lengths = [draw.randint(SHORTEST_PACKED, seq_len) for _ in range(PACKED_ENTRIES)]
    return [
        Point(d_head, causal, max(lengths), PACKED_ENTRIES, GQA_HEADS, kv, lengths=tuple(lengths))
        for kv in (GQA_HEADS, GQA_HEADS_K)
    ]


def _decode(d_head: int, causal: bool, seq_len: int) -> list[Point]:
    if causal:
        raise UnsupportedError("the decode grid has no mask: one query, the last, sees every key")
    return [
        Point(d_head, False, seq_len, batch, GQA_HEADS, GQA_HEADS_K, seq_q=1)
        for batch in DECODE_BATCHES
        if batch * seq_len <= MOST_DECODE_KEYS
    ]


def _window(d_head: int, causal: bool, seq_len: int) -> list[Point]:
    if not causal:
        raise UnsupportedError("the window grid is causal: a window ends at its query")
    batch, heads = max(1, TOKENS // seq_len), max(1, HIDDEN // d_head)
    return [Point(d_head, True, seq_len, batch, heads, window=window) for window in WINDOWS]


_BF16, _LENGTHS, _BOTH = DType.BF16, tuple(512 << i for i in range(6)), (False, True)
GRIDS = {
    "fa3": Grid(_BF16, (64, 128, 256), (False, True), _LENGTHS, _fa3),
    "seed": Grid(DType.FP16, (128,), (False,), tuple(SEED_SHAPES), _seed),
    "prefill_gqa": Grid(_BF16, (128,), (True,), (4096, 16384), _prefill_gqa),
    "varlen": Grid(_BF16, (128,), (False, True), (1024, 4096), _varlen),
    "decode": Grid(_BF16, (128,), (False,), DECODE_KEYS, _decode),
    "window": Grid(_BF16, (128,), (True,), (16384,), _window),
    "backward": Grid(_BF16, (64, 128, 256), _BOTH, _LENGTHS, _fa3, Measured.BACKWARD),
    "backward_seed": Grid(
        DType.FP16, (128,), (False,), tuple(SEED_SHAPES), _seed, Measured.BACKWARD
    ),
    "backward_gqa": Grid(_BF16, (128,), _BOTH, (4096, 16384), _backward_gqa, Measured.BACKWARD),
    "backward_varlen": Grid(_BF16, (128,), _BOTH, (1024, 4096), _varlen, Measured.BACKWARD),
    "tangent": Grid(_BF16, (64, 128), _BOTH, (4096, 16384), _fa3, Measured.TANGENT),
    "training": Grid(_BF16, (64, 128, 256), _BOTH, _LENGTHS, _fa3, Measured.TRAINING),
}
"""That of FlashAttention-3's paper, the ladder's, and one for each thing that models need; the same
for gradients and tangents."""
