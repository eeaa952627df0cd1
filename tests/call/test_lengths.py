# SPDX-License-Identifier: Apache-2.0
"""What the values of cu_seqlens and seqused may be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from flash_attention.call.call import Extras, Options
from flash_attention.call.lengths import check_lengths
from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError


def ints(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def check(
    starts_q: Sequence[int],
    starts_k: Sequence[int] | None = None,
    used: Sequence[int] | None = None,
    longest: int = 6,
) -> None:
    """10 rows of q; 10 of k, or 10 of each entry where k is not packed."""
    packed, entries = torch.empty(10, 2, 8), torch.empty(len(starts_q) - 1, 10, 2, 8)
    extras = Extras(
        cu_seqlens_q=ints(starts_q),
        cu_seqlens_k=None if starts_k is None else ints(starts_k),
        seqused_k=None if used is None else ints(used),
    )
    options = Options(max_seqlen_q=longest, max_seqlen_k=None if starts_k is None else longest)
    k = entries if starts_k is None else packed
    problem = Problem.from_tensors(packed, k, k, options=options, extras=extras)
    check_lengths(problem, extras)


def test_entries_within_their_tensors_pass() -> None:
    check([0, 3, 3, 9])
    check([2, 8], [0, 6])
    check([0, 5, 10], [0, 4, 10], [4, 0])
    check([0, 5, 10], None, [10, 0])
    check([0], [0], [])


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 5, 3], r"cu_seqlens_. falls from 5 to 3 at entry 1; its numbers never fall"),
        ([0, 5, 11], r"cu_seqlens_. goes from 0 to 11; . has 10 rows, allowed are 0 to 10"),
        ([-1, 2, 3], r"cu_seqlens_. goes from -1 to 3"),
        ([0, 7, 10], r"entry 0 of . has 7 rows by cu_seqlens_.; max_seqlen_. is 6, pass at leas"),
    ],
)
def test_entries_outside_of_their_tensors_are_refused(starts: list[int], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check(starts)
    with pytest.raises(UnsupportedError, match=message):
        check([0, 1, 2], starts)


@pytest.mark.parametrize("used", [[-1, 2], [5, 2]])
def test_no_entry_uses_more_keys_than_it_has(used: list[int]) -> None:
    message = rf"seqused_k\[0\] is {used[0]}; entry 0 has 4 keys, allowed are 0 to 4"
    with pytest.raises(UnsupportedError, match=message):
        check([0, 1, 2], [0, 4, 9], used)
    with pytest.raises(UnsupportedError, match=r"seqused_k\[1\] is 11; entry 1 has 10 keys"):
        check([0, 1, 2], None, [10, 11])
