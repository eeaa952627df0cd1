# SPDX-License-Identifier: Apache-2.0
"""The FLOP and the bytes of a problem, whatever kernel runs it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.call.tangent_call import TangentProblem
from flash_attention.families.sm90.mla.d_heads import is_mla


@dataclass(frozen=True)
class Work:
    """FLOP of the two products over the keys that queries see, and the bytes of q, k, v and o.

    A causal mask of one length halves the FLOP, as everyone counts; of a window every score
    counts that it leaves. The bytes are those of each tensor once, k and v as far as they are used,
    and v not at all if it is part of k. With tangents there are six products and eight tensors.
    """

    flop: int
    num_bytes: int
    # False if lengths cannot be read, and every sequence counts as the longest, or if a function
    # masks, and every score counts that it may show.
    exact: bool

    @property
    def intensity(self) -> float:
        """The FLOP per byte."""
        return self.flop / self.num_bytes if self.num_bytes else 0.0


def work_of(problem: Problem, call: Call) -> Work:
    """Count the work of a call. Reading the lengths of sequences waits for their device."""
    lengths = (call.cu_seqlens_q, call.cu_seqlens_k, call.seqused_k)
    exact = not any(tensor is not None and tensor.is_meta for tensor in lengths)
    queries = _lengths(call.cu_seqlens_q if exact else None, problem.seq_q, problem.batch)
    keys = _lengths(call.cu_seqlens_k if exact else None, problem.seq_k, problem.batch)
    if exact and call.seqused_k is not None:
        keys = call.seqused_k.tolist()
    entries = Counter(zip(queries, keys, strict=True))
    seen = sum(n * _seen_twice(problem, q, k) for (q, k), n in entries.items())
    columns, rows = problem.d_head + problem.d_v, problem.heads * sum(queries)
    of_key = problem.d_head if is_mla(problem.d_head, problem.d_v) else columns
    num_bytes = problem.d_head * rows * problem.dtype.itemsize
    num_bytes += of_key * problem.heads_k * sum(keys) * (problem.kv_dtype or problem.dtype).itemsize
    num_bytes += problem.d_v * rows * problem.output_dtype.itemsize
    counted = exact and not problem.has_mask_function
    flop = columns * problem.heads * seen
    if isinstance(problem, TangentProblem):
        flop, num_bytes = 3 * flop, 2 * num_bytes
    return Work(flop, num_bytes, counted)


def _lengths(cu_seqlens: Tensor | None, length: int, batch: int) -> list[int]:
    if cu_seqlens is None:
        return [length] * batch
    return [end - start for start, end in pairwise(cu_seqlens.tolist())]


def _seen_twice(problem: Problem, seq_q: int, seq_k: int) -> int:
    """Count the unmasked scores of one head of one sequence, times two to stay integral."""
    if problem.causal:
        triangle = min(seq_q, seq_k) ** 2
        return triangle + 2 * seq_q * max(0, seq_k - seq_q)
    if problem.window is None:
        return 2 * seq_q * seq_k
    left, right = problem.window
    first = seq_k - seq_q  # the key that query 0 is aligned with
    ends = _sum_clipped(first + right + 1, seq_q, seq_k)
    return 2 * (ends - _sum_clipped(first - left, seq_q, seq_k))


def _sum_clipped(first: int, count: int, top: int) -> int:
    """Sum first, first + 1, ..., `count` numbers, each clamped to the range 0 to `top`."""

    def below(x: int) -> int:
        inside, beyond = min(max(x, 0), top), max(x - top, 0)
        return inside * (inside - 1) // 2 + beyond * top

    return below(first + count) - below(first)
