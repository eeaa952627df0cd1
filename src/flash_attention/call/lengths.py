# SPDX-License-Identifier: Apache-2.0
"""Checks that read the values of cu_seqlens, seqused_k and block_table."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError


def check_lengths(problem: Problem, call: Call) -> None:
    """Check that every sequence lies within its tensor. This waits for the tensors' device."""
    if problem.total_q is not None and call.cu_seqlens_q is not None:
        _check_starts("q", call.cu_seqlens_q, problem.total_q, problem.seq_q)
    keys = [problem.seq_k] * problem.batch
    if problem.total_k is not None and call.cu_seqlens_k is not None:
        keys = _check_starts("k", call.cu_seqlens_k, problem.total_k, problem.seq_k)
    if call.seqused_k is not None:
        for entry, (used, there) in enumerate(zip(call.seqused_k.tolist(), keys, strict=True)):
            if not 0 <= used <= there:
                raise UnsupportedError(
                    f"seqused_k[{entry}] is {used}; sequence {entry} has {there} keys, allowed are"
                    f" 0 to {there}"
                )
        if call.block_table is not None:
            _check_pages(problem, call.block_table, call.seqused_k)


def _check_pages(problem: Problem, table: Tensor, used: Tensor) -> None:
    """Check that the pages in use exist."""
    rows = zip(table.tolist(), used.tolist(), strict=True)
    for entry, (pages, keys) in enumerate(rows):
        for place, page in enumerate(pages[: -(-keys // max(problem.page_keys, 1))]):
            if not 0 <= page < problem.pages:
                raise UnsupportedError(
                    f"block_table[{entry}, {place}] is {page}, and sequence {entry} has {keys}"
                    f" keys; k and v have {problem.pages} pages, allowed are 0 to"
                    f" {problem.pages - 1}"
                )


def _check_starts(of: str, cu_seqlens: Tensor, total: int, longest: int) -> list[int]:
    """Check cu_seqlens, and return the lengths of the sequences."""
    name, starts = f"cu_seqlens_{of}", cu_seqlens.tolist()
    lengths = [end - start for start, end in pairwise(starts)]
    for entry, length in enumerate(lengths):
        if length < 0:
            raise UnsupportedError(
                f"{name} falls from {starts[entry]} to {starts[entry + 1]} at sequence {entry}; its"
                " numbers never fall"
            )
        if length > longest:
            raise UnsupportedError(
                f"sequence {entry} of {of} has {length} rows by {name}; max_seqlen_{of} is"
                f" {longest}, pass at least {max(lengths)}"
            )
    if starts[0] < 0 or starts[-1] > total:
        raise UnsupportedError(
            f"{name} goes from {starts[0]} to {starts[-1]}; {of} has {total} rows, allowed are 0 to"
            f" {total}"
        )
    return lengths
