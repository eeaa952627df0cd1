# SPDX-License-Identifier: Apache-2.0
"""Pages and entries that do not exist are refused by the name that the caller's function has."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import UnsupportedError, attention
from flash_attention.compat import flash_attn, flash_attn_3, kv_cache

BATCH, PAGE, HEADS_K, D = 2, 16, 2, 64
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "block_table": flash_attn.flash_attn_with_kvcache,
    "page_table": flash_attn_3.flash_attn_with_kvcache,
}


def numbers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def tables(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


Q, NEW = zeros(BATCH, 1, 4, D), zeros(BATCH, 1, HEADS_K, D)
PAGES = tables([0, 1], [2, 3])


def refused(message: str) -> Any:
    return pytest.raises(UnsupportedError, match=re.escape(message))


@pytest.mark.parametrize("table", FUNCTIONS)
@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("leftpad", [False, True])
def test_pages_that_do_not_exist_are_refused_and_nothing_is_stored(
    table: str, new: bool, leftpad: bool
) -> None:
    cache = zeros(4, PAGE, HEADS_K, D)
    asked: dict[str, Any] = {"cache_seqlens": numbers(20, 17), table: tables([0, 1], [2, 4])}
    if new:
        asked |= {"k": NEW + 1, "v": NEW + 1}
    if leftpad:
        asked["cache_leftpad"] = numbers(0, 1)
    keys = 18 if new else 17
    has = f"{table}[1, 1] is 4, and sequence 1 has {keys} keys; the cache has 4 pages"
    with refused(f"{has}, allowed are 0 to 3"):
        FUNCTIONS[table](Q, cache, cache.clone(), **asked)
    assert not cache.any()


@pytest.mark.parametrize("table", FUNCTIONS)
def test_pages_behind_the_keys_and_in_the_left_padding_may_be_missing(table: str) -> None:
    cache = torch.randn(4, PAGE, HEADS_K, D).bfloat16()
    asked: dict[str, Any] = {"cache_seqlens": numbers(20, 3), "cache_leftpad": numbers(16, 0)}
    given = FUNCTIONS[table](Q + 1, cache, cache, **asked, **{table: tables([-1, 1], [2, 9])})
    wanted = FUNCTIONS[table](Q + 1, cache, cache, **asked, **{table: PAGES})
    assert torch.equal(given, wanted)
    assert bool(given.any())


@pytest.mark.parametrize("table", FUNCTIONS)
def test_the_index_names_rows_of_the_table_or_entries(table: str) -> None:
    cache, index = zeros(4, PAGE, HEADS_K, D), numbers(0, 4)
    named = "cache_batch_idx[1] is 4, and sequence 1 has 3 keys; "
    asked: dict[str, Any] = {"cache_seqlens": 3, "cache_batch_idx": index}
    with refused(f"{named}the cache has 4 entries, allowed are 0 to 3"):
        FUNCTIONS[table](Q, cache, cache, **asked)
    with refused(f"{named}{table} has 2 rows, allowed are 0 to 1"):
        FUNCTIONS[table](Q, cache, cache, **asked, **{table: PAGES})
    with refused(f"cache_batch_idx[0] is 0, and sequence 0 has 3 keys; {table} has no rows, pass"):
        FUNCTIONS[table](Q, cache, cache, **asked, **{table: PAGES[:0]})


@pytest.mark.parametrize("table", FUNCTIONS)
def test_a_cache_without_pages_has_no_keys(table: str) -> None:
    cache = zeros(0, PAGE, HEADS_K, D)
    paged: dict[str, Any] = {table: PAGES}
    run = FUNCTIONS[table]
    with refused("is 0, and sequence 0 has 3 keys; the cache has no pages, pass one that has"):
        run(Q, cache, cache, cache_seqlens=numbers(3, 0), **paged)
    with refused("sequence 0 has 3 keys; the cache has no entries, pass one that has"):
        run(Q, cache, cache, cache_seqlens=3, cache_batch_idx=numbers(0, 0))
    assert not run(Q, cache, cache, cache_seqlens=numbers(0, 0), **paged).any()


@pytest.mark.parametrize("table", FUNCTIONS)
def test_new_keys_of_a_cache_without_pages_are_refused_without_reading_values(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "has_values", lambda numbers: False)
    cache = zeros(0, PAGE, HEADS_K, D)
    asked: dict[str, Any] = {"k": NEW, "v": NEW, "cache_seqlens": numbers(0, 0)}
    for described, are in (({table: PAGES}, "pages"), ({"cache_batch_idx": PAGES[0]}, "entries")):
        message = f"k_cache has shape (0, 16, 2, 64), no {are}, and there are 1 new keys; pass a"
        with refused(message):
            FUNCTIONS[table](Q, cache, cache, **asked, **described)


@pytest.mark.parametrize("table", FUNCTIONS)
def test_the_table_has_the_name_of_the_function(table: str) -> None:
    cache, run = zeros(4, PAGE, HEADS_K, D), FUNCTIONS[table]
    with refused(f"{table} has shape (2, 2) and is torch.int64"):
        run(Q, cache, cache, cache_seqlens=1, **{table: PAGES.long()})
    with refused(f"pass a longer cache, or a {table} with more pages"):
        run(Q, cache, cache, cache_seqlens=33, **{table: PAGES})
    for lengths in (None, 3):
        with refused("described for 1 sequences; q has 2, pass as many entries of k_cache, rows"):
            run(Q, cache, cache, cache_seqlens=lengths, **{table: PAGES[:1]})


@pytest.mark.parametrize("validate", [False, True])
def test_attention_says_that_there_are_no_pages(validate: bool) -> None:
    cache = zeros(0, PAGE, HEADS_K, D)
    asked: dict[str, Any] = {"block_table": PAGES, "validate": validate}
    with refused("block_table[1, 0] is 2, and sequence 1 has 5 keys; the cache in k and v has no"):
        attention(Q, cache, cache, seqused_k=numbers(0, 5), **asked)
    assert not attention(Q, cache, cache, seqused_k=numbers(0, 0), **asked).any()
