# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings of new keys and of queries."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention import UnsupportedError
from flash_attention.compat import flash_attn, flash_attn_3, kv_cache
from flash_attention.launch.cache_update import update_cache
from flash_attention.reference.judge import cu_seqlens
from tests.compat.rotations import rotation, turned
from tests.compat.test_flash_attn_cache import close, new_rows, numbers, tensors
from tests.decode_cases import in_pages, shuffled_table

flash_attn_with_kvcache: Any = flash_attn.flash_attn_with_kvcache
with_cache: Any = flash_attn_3.flash_attn_with_kvcache


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (5, -1)}], ids=str)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dim", [16, 64])
def test_new_keys_and_queries_are_rotated(
    dim: int, interleaved: bool, options: dict[str, Any]
) -> None:
    q, k, v = tensors(2, 12)
    before, new = q.clone(), new_rows(2)
    cos, sin = rotation(12, dim)
    lengths = numbers(3, 10, 0)
    wanted = [t.clone() for t in (k, v)]
    turned_q = torch.empty_like(q)
    for entry, n in enumerate(lengths.tolist()):
        rows = slice(n, n + 2)
        wanted[0][entry, rows] = turned(new[0][entry], cos[rows], sin[rows], interleaved)
        wanted[1][entry, rows] = new[1][entry]
        at = rows if options else slice(n, n + 1)
        turned_q[entry] = turned(
            q[entry], cos[at].expand(2, -1), sin[at].expand(2, -1), interleaved
        )
    rotary: dict[str, Any] = {"rotary_cos": cos, "rotary_sin": sin}
    out = flash_attn_with_kvcache(
        *(q, k, v, *new),
        cache_seqlens=lengths,
        **rotary,
        rotary_interleaved=interleaved,
        **options,
    )
    assert torch.equal(k, wanted[0])
    assert torch.equal(v, wanted[1])
    assert torch.equal(q, before)
    close(out, flash_attn_with_kvcache(turned_q, k, v, cache_seqlens=lengths + 2, **options))


def test_columns_may_be_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries and new rows whose last dimension is not contiguous are copied."""
    monkeypatch.setattr(kv_cache, "update_with_torch", update_cache)
    q, *caches = tensors(2, 12)
    new, turn, lengths = new_rows(2), rotation(12, 32), numbers(3, 10, 0)
    results = []
    for apart in (False, True):
        mine = [t.clone() for t in caches]
        rows = [t.mT.contiguous().mT if apart else t for t in (q, *new)]
        out = flash_attn_with_kvcache(rows[0], *mine, *rows[1:], *turn, lengths, causal=True)
        results.append([out, *mine])
    assert all(map(torch.equal, *results))


ROWS, TABLE_ROWS = 12, 20  # of the cache, and of the tables of angles


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("queries", "new", "causal", "last"),
    [
        *((3, 1, True, 17), (3, 1, False, 19), (1, 4, True, 16), (1, 4, False, 16)),
        *((2, 2, True, 18), (3, 0, True, 17), (3, 0, False, 19)),
    ],
)
def test_positions_end_with_the_tables(
    queries: int, new: int, causal: bool, last: int, packed: bool
) -> None:
    """Sequence 1 starts at the last position from where all fit, and then just outside."""
    q, *caches = tensors(queries, ROWS)
    rows = new_rows(new)
    cos, sin = rotation(TABLE_ROWS, 32)
    options: dict[str, Any] = {"rotary_cos": cos, "rotary_sin": sin, "causal": causal}
    if packed:
        q, rows = q.flatten(0, 1), (rows[0].flatten(0, 1), rows[1].flatten(0, 1))
        options |= {"cu_seqlens_q": cu_seqlens((queries,) * 3), "max_seqlen_q": queries}
        options["cu_seqlens_k_new"] = cu_seqlens((new,) * 3)

    def call(start: int) -> None:
        first = numbers(0, start, 3)
        with_cache(q, *caches, *rows, cache_seqlens=5, rotary_seqlens=first, **options)

    before = caches[0].clone()
    outside = {
        last + 1: f"sequence 1 has the positions {last + 1} to 20; .* 20 rows, pass at least 21",
        -1: r"rotary_seqlens\[1\] is -1; positions start at 0",
    }
    for start, message in outside.items():
        with pytest.raises(UnsupportedError, match=message):
            call(start)
        assert torch.equal(caches[0], before)
    for start in (last, 0):
        call(start)
    wanted = turned(new_rows(new)[0][1], cos[:new], sin[:new], interleaved=True)
    assert torch.equal(caches[0][1, 5 : 5 + new], wanted)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (numbers(0, 1), r"has shape \(2,\) and is torch\.int32 on cpu; pass .* of shape \(3,\)"),
        (
            numbers(0, 1, 2).long(),
            r"has shape \(3,\) and is torch\.int64 on cpu; pass torch\.int32",
        ),
        (numbers(0, 1, 2).to("meta"), r"has .* torch\.int32 on meta; pass .* \(3,\) on cpu"),
        ([0, 1, 2], "is a list; pass a torch.Tensor"),
    ],
    ids=["shape", "dtype", "device", "list"],
)
def test_first_positions_are_a_number_of_each_sequence(first: Any, said: str) -> None:
    q, *caches = tensors(1, ROWS)
    before = caches[0].clone()
    turn = rotation(ROWS, 32)
    with pytest.raises(UnsupportedError, match=f"rotary_seqlens {said}"):
        with_cache(*(q, *caches, *new_rows(1), None, *turn), cache_seqlens=5, rotary_seqlens=first)
    assert torch.equal(caches[0], before)


def test_a_window_of_none_is_no_window() -> None:
    results = []
    for options in ({}, {"window_size": None}, {"window_size": (None, -1)}):
        q, *caches = tensors(2, ROWS)
        given = (q, *caches, *new_rows(2), *rotation(ROWS, 32))
        results.append(flash_attn_with_kvcache(*given, cache_seqlens=numbers(3, 10, 0), **options))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_tables_have_a_row_for_every_key_that_fits_into_the_pages() -> None:
    q, k, v = tensors(1, 32)
    table = shuffled_table(3, 4)
    pages = [in_pages(t, table, 8) for t in (k, v)]
    cos, sin = rotation(32, 32)

    def step(rows: int) -> Any:
        turn: dict[str, Any] = {"rotary_cos": cos[:rows], "rotary_sin": sin[:rows]}
        return flash_attn_with_kvcache(
            q, *pages, *new_rows(1), cache_seqlens=3, block_table=table, **turn
        )

    with pytest.raises(UnsupportedError, match=r"have 31 rows; .* room for 32 keys, pass as many"):
        step(31)
    step(32)


@pytest.mark.gpu
@pytest.mark.parametrize("page", [8, 64])
def test_a_captured_step_follows_lengths_and_keys_that_change(page: int) -> None:
    """A step of decoding in a CUDA graph: nothing of it waits for the host."""
    q, k, v = tensors(1, 128)
    table = shuffled_table(3, 128 // page)
    caches = [in_pages(t, table, page) for t in (k, v)]
    new, lengths, turn = new_rows(1), numbers(3, 100, 64), rotation(128, 32)
    on_gpu = [t.cuda() for t in (q, *caches, *new, *turn, lengths)]
    *_, cached_lengths = on_gpu
    names = table.cuda()

    def step() -> Any:
        return flash_attn_with_kvcache(*on_gpu, block_table=names, causal=True)

    step()  # compiles, and stores what the graph stores again
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for count in range(3):
        wanted = flash_attn_with_kvcache(
            *(q, *caches, *new, *turn, lengths), block_table=table, causal=True
        )
        graph.replay()
        close(out.cpu(), wanted)
        for mine, theirs in zip(on_gpu[1:3], caches, strict=True):
            assert torch.equal(mine.cpu(), theirs)
        lengths += 1 + count
        cached_lengths.copy_(lengths)
        for mine, theirs in zip(on_gpu[3:5], new, strict=True):
            mine.copy_(theirs.mul_(-1))
