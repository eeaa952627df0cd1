# SPDX-License-Identifier: Apache-2.0
"""What reads the values of lengths, pages and descale factors: checks, and a count of work."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from flash_attention.call.call import DESCALES, Call
from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError


def check_lengths(problem: Problem, call: Call) -> None:
    """Check that every sequence lies within its tensor, and that descale factors are finite and not
    negative. This waits for the tensors' device."""
    for name in DESCALES:
        if (factors := getattr(call, name)) is not None:
            _check_factors(name, factors)
    if problem.total_q is not None and call.cu_seqlens_q is not None:
        _check_packed("q", call.cu_seqlens_q, problem.total_q, problem.seq_q)
    longest = problem.seq_k
    if call.block_table is not None and call.max_seqlen_k is not None:
        longest = min(longest, call.max_seqlen_k)
    keys = [longest] * problem.batch
    if problem.total_k is not None and call.cu_seqlens_k is not None:
        keys = _check_packed("k", call.cu_seqlens_k, problem.total_k, problem.seq_k)
    if call.seqused_k is not None:
        for entry, (used, there) in enumerate(zip(call.seqused_k.tolist(), keys, strict=True)):
            if not 0 <= used <= there:
                has = f"sequence {entry} has {there} keys"
                if call.block_table is not None and there == call.max_seqlen_k:
                    has = f"max_seqlen_k is {there}"
                raise UnsupportedError(
                    f"seqused_k[{entry}] is {used}; {has}, allowed are 0 to {there}"
                )
        if call.block_table is not None:
            _check_pages(problem, call.block_table, call.seqused_k)


def _check_factors(name: str, factors: Tensor) -> None:
    for factor in factors.flatten().tolist():
        if not 0 <= factor < inf:
            raise UnsupportedError(
                f"{name} holds {factor}; allowed are numbers from 0 on, without inf and NaN"
            )


def _check_pages(problem: Problem, table: Tensor, used: Tensor) -> None:
    """Check that the pages in use exist."""
    rows = zip(table.tolist(), used.tolist(), strict=True)
    for entry, (pages, keys) in enumerate(rows):
        for place, page in enumerate(pages[: -(-keys // max(problem.page_keys, 1))]):
            if not 0 <= page < problem.pages:
                raise UnsupportedError(
                    f"block_table[{entry}, {place}] is {page}, and sequence {entry} has {keys}"
                    f" keys; {allowed_of('the cache in k and v', problem.pages, 'pages')}"
                )


def allowed_of(whole: str, count: int, parts: str) -> str:
    """Say which numbers name a part of something with `count` of them."""
    if count == 0:
        return f"{whole} has no {parts}, pass one that has"
    return f"{whole} has {count} {parts}, allowed are 0 to {count - 1}"


def _check_packed(of: str, cu_seqlens: Tensor, total: int, longest: int) -> list[int]:
    """Check packed sequences, and return their lengths."""
    name = f"cu_seqlens_{of}"
    lengths = check_starts(of, name, cu_seqlens, total)
    for entry, length in enumerate(lengths):
        if length > longest:
            raise UnsupportedError(
                f"sequence {entry} of {of} has {length} rows by {name}; max_seqlen_{of} is"
                f" {longest}, pass at least {max(lengths)}"
            )
    return lengths


def check_starts(of: str, name: str, cu_seqlens: Tensor, total: int) -> list[int]:
    """Check where packed sequences of `of` start, and return their lengths. This waits for the
    tensor's device."""
    starts = cu_seqlens.tolist()
    lengths = [end - start for start, end in pairwise(starts)]
    for entry, length in enumerate(lengths):
        if length < 0:
            raise UnsupportedError(
                f"{name} falls from {starts[entry]} to {starts[entry + 1]} at sequence {entry}; its"
                " numbers never fall"
            )
    if starts[0] < 0 or starts[-1] > total:
        raise UnsupportedError(
            f"{name} goes from {starts[0]} to {starts[-1]}; {of} has {total} rows, allowed are 0 to"
            f" {total}"
        )
    return lengths


def count_pairs(asked: dict[str, Any]) -> int:
    """Count the pairs of a query and a key of a head, of all heads. Reading the lengths waits for
    their device. If they have no values, every sequence counts as the longest."""
    q, k = asked["q"], asked["k"]
    starts_q, starts_k, used, table = (
        asked.get(name) for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "block_table")
    )
    batch = q.shape[0] if starts_q is None else starts_q.shape[0] - 1
    longest_q = q.shape[-3] if starts_q is None else asked["max_seqlen_q"]
    longest_k = k.shape[-3] if starts_k is None else asked["max_seqlen_k"]
    if table is not None:
        longest_k *= table.shape[1]
        bound = asked.get("max_seqlen_k")
        longest_k = longest_k if bound is None else min(longest_k, bound)
    queries = _values(starts_q, [longest_q] * batch, starts=True)
    keys = _values(starts_k, [longest_k] * batch, starts=True)
    keys = _values(used, keys, starts=False)
    return int(sum(a * b for a, b in zip(queries, keys, strict=True)) * q.shape[-2])


def _values(numbers: Tensor | None, otherwise: list[int], *, starts: bool) -> list[int]:
    if numbers is None or isinstance(numbers, FakeTensor) or numbers.is_meta:
        return otherwise
    lengths: list[int] = (numbers.diff() if starts else numbers).tolist()
    return lengths
