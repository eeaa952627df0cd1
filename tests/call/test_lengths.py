# SPDX-License-Identifier: Apache-2.0
"""What the values of cu_seqlens, seqused and block tables may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import HopperForwardKernelConfig, TileOrder, attention
from flash_attention.call.call import Call
from flash_attention.call.dtype import DType
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
    k = entries if starts_k is None else packed
    call = Call(
        *(packed, k, k),
        cu_seqlens_q=ints(starts_q),
        cu_seqlens_k=None if starts_k is None else ints(starts_k),
        seqused_k=None if used is None else ints(used),
        max_seqlen_q=longest,
        max_seqlen_k=None if starts_k is None else longest,
    )
    check_lengths(Problem.of(call), call)


def test_entries_within_their_tensors_pass() -> None:
    check([0, 3, 3, 9])
    check([2, 8], [0, 6])
    check([0, 5, 10], [0, 4, 10], [4, 0])
    check([0, 5, 10], None, [10, 0])
    check([0], [0], [])


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 5, 3], r"cu_seqlens_. falls from 5 to 3 at sequence 1; its numbers never fall"),
        ([0, 5, 11], r"cu_seqlens_. goes from 0 to 11; . has 10 rows, allowed are 0 to 10"),
        ([-1, 2, 3], r"cu_seqlens_. goes from -1 to 3"),
        ([0, 7, 10], r"sequence 0 of . has 7 rows by cu_seqlens_.; max_seqlen_. is 6, pass at"),
    ],
)
def test_entries_outside_of_their_tensors_are_refused(starts: list[int], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check(starts)
    with pytest.raises(UnsupportedError, match=message):
        check([0, 1, 2], starts)


@pytest.mark.parametrize("used", [[-1, 2], [5, 2]])
def test_no_entry_uses_more_keys_than_it_has(used: list[int]) -> None:
    message = rf"seqused_k\[0\] is {used[0]}; sequence 0 has 4 keys, allowed are 0 to 4"
    with pytest.raises(UnsupportedError, match=message):
        check([0, 1, 2], [0, 4, 9], used)
    with pytest.raises(UnsupportedError, match=r"seqused_k\[1\] is 11; sequence 1 has 10 keys"):
        check([0, 1, 2], None, [10, 11])


PAGES, PAGE_KEYS = 5, 16
PAGED = HopperForwardKernelConfig(
    *(DType.BF16, 64, 2, 64, 2),
    tma=True,
    specialised=True,
    tile_order=TileOrder.DYNAMIC,
)


def paged(table: Sequence[Sequence[int]], used: Sequence[int]) -> Call:
    """Two entries of up to three pages, out of five."""
    q = torch.zeros(2, 4, 2, 64, dtype=torch.bfloat16)
    k = torch.zeros(PAGES, PAGE_KEYS, 2, 64, dtype=torch.bfloat16)
    named = torch.tensor(table, dtype=torch.int32)
    return Call(q, k, k, seqused_k=ints(used), block_table=named)


@pytest.mark.parametrize(
    ("table", "used"),
    [
        ([[0, 1, 2], [3, 4, 0]], [48, 48]),
        ([[4, 4, 4], [4, 4, 4]], [48, 33]),
        ([[0, 1, 99], [-7, 99, 99]], [32, 0]),
    ],
    ids=["all in use", "the last page", "beyond the keys in use"],
)
def test_pages_that_are_there_pass(table: list[list[int]], used: list[int]) -> None:
    call = paged(table, used)
    check_lengths(Problem.of(call), call)


@pytest.mark.parametrize("page", [PAGES, PAGES + 1, -1])
@pytest.mark.parametrize("keys", [33, 48])
def test_pages_that_are_not_there_are_refused(page: int, keys: int) -> None:
    call = paged([[0, 1, 2], [3, 4, page]], [48, keys])
    message = (
        rf"block_table\[1, 2\] is {page}, and sequence 1 has {keys} keys; the cache in k and v has"
        " 5 pages, allowed are 0 to 4"
    )
    with pytest.raises(UnsupportedError, match=message):
        check_lengths(Problem.of(call), call)
    check_lengths(Problem.of(call), call._replace(seqused_k=ints([48, 32])))


def test_pages_of_one_key_are_read_one_by_one() -> None:
    call = paged([[0, 1, 2], [3, 4, PAGES]], [2, 3])
    single = call._replace(k=call.k[:, :1], v=call.v[:, :1])
    with pytest.raises(UnsupportedError, match=r"block_table\[1, 2\] is 5, and sequence 1 has 3 k"):
        check_lengths(Problem.of(single), single)
    check_lengths(Problem.of(single), single._replace(seqused_k=ints([3, 2])))


@pytest.mark.usefixtures("no_compile")
def test_one_page_too_many_is_refused_on_the_cpu_and_when_validated() -> None:
    call = paged([[0, 1, 2], [3, 4, PAGES]], [48, 33])
    ways: list[dict[str, Any]] = [{}, {"config": PAGED, "validate": True}]
    for how in ways:
        with pytest.raises(UnsupportedError, match=r"block_table\[1, 2\] is 5, .* 0 to 4"):
            attention(*call[:3], **{**call.extras(), **how})


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), -1.0])
def test_descale_factors_are_finite_and_not_negative(factor: float) -> None:
    q = torch.zeros(1, 4, 2, 16).to(torch.float8_e4m3fn)
    one = torch.ones(1, 2)
    with pytest.raises(
        UnsupportedError, match=rf"k_descale holds {factor}; allowed are numbers fro"
    ):
        attention(q, q, q, q_descale=one, k_descale=one * factor, v_descale=one)
