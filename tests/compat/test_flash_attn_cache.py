# SPDX-License-Identifier: Apache-2.0
"""Caches in pages, in another order, behind padding: by torch, in the emulator and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import UnsupportedError
from flash_attention.attention import attention
from flash_attention.call.call import Call
from flash_attention.compat import flash_attn, kv_cache
from flash_attention.launch.cache_update import update_cache
from flash_attention.launch.plans import plan_for
from flash_attention.reference.judge import cu_seqlens, generate_qkv
from tests.compat.rotations import rotation
from tests.decode_cases import in_pages, shuffled_table
from tests.devices import DEVICES

pytestmark = pytest.mark.slow  # left out of `make quick`

Function = Callable[..., Any]  # their results have the shape that the options say
flash_attn_func: Function = flash_attn.flash_attn_func
flash_attn_varlen_func: Function = flash_attn.flash_attn_varlen_func
flash_attn_with_kvcache: Function = flash_attn.flash_attn_with_kvcache

PAGE = 16
LENGTHS_Q, LENGTHS_K = (3, 1, 20), (45, 17, 30)


def numbers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def tensors(seq_q: int, seq_k: int, batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    return generate_qkv(batch, seq_q, 4, 64, torch.bfloat16, seq_len_k=seq_k, n_heads_k=2)


def new_rows(count: int, batch: int = 3) -> tuple[Tensor, Tensor]:
    _, k, v = generate_qkv(batch, count, 4, 64, torch.bfloat16, "cpu", 5, n_heads_k=2)
    return k, v


def close(result: Tensor, wanted: Tensor) -> None:
    """Within two steps of bf16 at 1."""
    torch.testing.assert_close(result.float(), wanted.float(), rtol=1.6e-2, atol=1.6e-2)


def alone(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Attention of one entry."""
    result: Tensor = flash_attn_func(q[None], k[None], v[None], **options)[0]
    return result


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (5, 2)}], ids=str)
def test_packed_queries_of_pages(options: dict[str, Any]) -> None:
    q, k, v = tensors(24, 48)
    table = shuffled_table(3, 3)
    pages = [in_pages(t, table, PAGE) for t in (k, v)]
    starts = (cu_seqlens(LENGTHS_Q), cu_seqlens(LENGTHS_K))
    out, lse, _ = flash_attn_varlen_func(
        *(q[0], *pages, *starts, 20, 45), **options, block_table=table, return_attn_probs=True
    )
    assert (out.shape, lse.shape) == ((24, 4, 64), (4, 24))
    for entry, (queries, n) in enumerate(zip(q[0].split(LENGTHS_Q), LENGTHS_K, strict=True)):
        wanted = alone(queries, k[entry, :n], v[entry, :n], **options)
        close(out.split(LENGTHS_Q)[entry], wanted)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `attention` was last asked for."""
    options: dict[str, Any] = {}

    def record(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Any:
        options.update(given)
        return attention(q, k, v, **given)

    monkeypatch.setattr(flash_attn, "attention", record)
    return options


def test_columns_of_a_table_beyond_the_longest_entry_are_not_read(asked: dict[str, Any]) -> None:
    q, k, v = tensors(24, 48)
    table = shuffled_table(3, 3)
    pages = [in_pages(t, table, PAGE) for t in (k, v)]
    wider = torch.cat((table, torch.full((3, 5), 10**6, dtype=torch.int32)), dim=1)
    starts = (cu_seqlens(LENGTHS_Q), cu_seqlens(LENGTHS_K))
    out = flash_attn_varlen_func(q[0], *pages, *starts, 20, 45, block_table=wider)
    assert asked["max_seqlen_k"] == 45
    assert torch.equal(
        out, flash_attn_varlen_func(q[0], *pages, *starts, 20, 45, block_table=table)
    )


@pytest.mark.parametrize("lengths", [None, 5, numbers(3, 9, 0)], ids=["none", "int", "tensor"])
def test_entries_of_a_cache_are_those_that_the_index_names(lengths: Any) -> None:
    q, k, v = tensors(2, 12)
    caches = [torch.cat((t, 2 * t)) for t in (k, v)]  # of six entries
    index = numbers(5, 0, 2)
    moved = flash_attn_with_kvcache(
        q, *caches, cache_seqlens=lengths, cache_batch_idx=index, causal=True
    )
    gathered = (cache[index.long()] for cache in caches)
    assert torch.equal(
        moved, flash_attn_with_kvcache(q, *gathered, cache_seqlens=lengths, causal=True)
    )
    with pytest.raises(UnsupportedError, match=r"cache_batch_idx\[1\] is 6, .* allowed are 0 to 5"):
        flash_attn_with_kvcache(q, *caches, cache_seqlens=lengths, cache_batch_idx=numbers(5, 6, 2))


def test_new_keys_go_to_the_entries_that_the_index_names() -> None:
    q, k, v = tensors(2, 12)
    caches, new = [torch.cat((t, t)) for t in (k, v)], new_rows(2)
    index, lengths = numbers(5, 0, 2), numbers(3, 10, 0)
    wanted = [cache.clone() for cache in caches]
    for cache, rows in zip(wanted, new, strict=True):
        for entry, n, row in zip(index.tolist(), lengths.tolist(), rows, strict=True):
            cache[entry, n : n + 2] = row
    out = flash_attn_with_kvcache(
        q, *caches, *new, cache_seqlens=lengths, cache_batch_idx=index, causal=True
    )
    for cache, expected in zip(caches, wanted, strict=True):
        assert torch.equal(cache, expected)
    gathered = (cache[index.long()] for cache in wanted)
    close(out, flash_attn_with_kvcache(q, *gathered, cache_seqlens=lengths + 2, causal=True))


@pytest.mark.parametrize("append", [False, True])
def test_keys_start_behind_the_left_padding(append: bool) -> None:
    q, k, v = tensors(2, 12)
    pads, lengths = (4, 0, 7), numbers(9, 10, 8)
    for tensor in (k, v):
        for entry, pad in zip(tensor, pads, strict=True):
            entry[:pad] = torch.nan
    new: dict[str, Tensor] = {}
    ends = lengths.tolist()
    if append:
        new = dict(zip("kv", new_rows(2), strict=True))
        ends = [n + 2 for n in ends]
    out, lse = flash_attn_with_kvcache(
        *(q, k, v),
        **new,
        cache_seqlens=lengths,
        cache_leftpad=numbers(*pads),
        causal=True,
        return_softmax_lse=True,
    )
    for entry, (pad, n) in enumerate(zip(pads, ends, strict=True)):
        rows = slice(pad, n)
        wanted = flash_attn_func(
            *(t[entry : entry + 1] for t in (q, k[:, rows], v[:, rows])),
            causal=True,
            return_attn_probs=True,
        )
        close(out[entry], wanted[0][0])
        torch.testing.assert_close(lse[entry], wanted[1][0], rtol=1e-4, atol=1e-4)
    if append:
        assert torch.equal(k[0, 9:11], new["k"][0])


def test_the_whole_cache_counts_where_no_length_is_given() -> None:
    q, k, v = tensors(2, 48)
    whole = flash_attn_func(q, k, v)
    table = shuffled_table(3, 3)
    pages = (in_pages(t, table, PAGE) for t in (k, v))
    close(flash_attn_with_kvcache(q, *pages, block_table=table), whole)
    close(flash_attn_with_kvcache(q, k, v, cache_leftpad=numbers(0, 0, 0)), whole)


@pytest.mark.parametrize(
    ("splits", "rows", "split_keys"),
    [(0, 100, None), (1, 100, 128), (1, 64, 64), (1, 0, 64), (3, 700, 256), (90, 700, 64)],
)
def test_splits_divide_all_keys(
    splits: int, rows: int, split_keys: int | None, asked: dict[str, Any]
) -> None:
    q, k, v = tensors(1, rows)
    out = flash_attn_with_kvcache(q, k, v, num_splits=splits)
    assert asked["split_keys"] == split_keys
    close(out, flash_attn_func(q, k, v))


@pytest.mark.parametrize("splits", [1, 4])
def test_new_keys_are_split_too(splits: int, asked: dict[str, Any]) -> None:
    q, k, v = tensors(1, 700)
    new, lengths = new_rows(1), numbers(600, 3, 699)
    given = [t.clone() for t in (k, v)]
    out = flash_attn_with_kvcache(q, *given, *new, cache_seqlens=lengths, num_splits=splits)
    assert asked["split_keys"] == (704 if splits == 1 else 192)
    close(out, flash_attn_with_kvcache(q, k, v, *new, cache_seqlens=lengths))


COMBINED = {
    "pages index": ("block_table", "cache_batch_idx"),
    "pages pad": ("block_table", "cache_leftpad"),
    "index pad": ("cache_batch_idx", "cache_leftpad"),
    "all": ("block_table", "cache_batch_idx", "cache_leftpad"),
}


def combined(kind: str, device: str, *, append: bool = True) -> tuple[Tensor, Any, Any]:
    """A cache that is described in several ways: q, (out, lse), and k and v of each sequence."""
    q, *kv = tensors(2, 64)
    names, pads, lengths = COMBINED[kind], (4, 0, 7), (30, 10, 62)
    new: Any = new_rows(2) if append else ()
    caches, described = [t.clone() for t in kv], {}
    index = (2, 0, 1) if "cache_batch_idx" in names else (0, 1, 2)
    if "block_table" in names:
        described["block_table"] = table = shuffled_table(3, 4)
        caches = [in_pages(t, table, PAGE) for t in kv]
    if "cache_batch_idx" in names:
        described["cache_batch_idx"] = numbers(*index)
    if "cache_leftpad" in names:
        described["cache_leftpad"] = numbers(*pads)
    else:
        pads = (0, 0, 0)
    result = flash_attn_with_kvcache(
        *(t.to(device) for t in (q, *caches, *new)),
        **{name: tensor.to(device) for name, tensor in described.items()},
        cache_seqlens=numbers(*lengths).to(device),
        causal=True,
        return_softmax_lse=True,
    )
    keys = [
        [
            torch.cat((t[place, pad:n], *(rows[entry] for rows in more)))
            for t, more in zip(kv, ([new[0]], [new[1]]) if append else ([], []), strict=True)
        ]
        for entry, (place, pad, n) in enumerate(zip(index, pads, lengths, strict=True))
    ]
    return q, result, keys


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("kind", COMBINED)
def test_a_cache_is_described_in_several_ways(kind: str, append: bool) -> None:
    check_combined(kind, "cpu", append=append)


def check_combined(kind: str, device: str, *, append: bool) -> None:
    q, (out, lse), keys = combined(kind, device, append=append)
    for entry, (k, v) in enumerate(keys):
        wanted, wanted_lse, _ = flash_attn_func(
            *(t[None] for t in (q[entry], k, v)),
            causal=True,
            return_attn_probs=True,
        )
        close(out[entry].cpu(), wanted[0])
        torch.testing.assert_close(lse[entry].cpu(), wanted_lse[0], rtol=1e-3, atol=1e-3)


def packed_queries_of_pages(device: str) -> Tensor:
    q, k, v = tensors(24, 64)
    table = shuffled_table(3, 4)
    pages = (in_pages(t, table, PAGE).to(device) for t in (k, v))
    starts = (cu_seqlens(LENGTHS_Q, device), cu_seqlens(LENGTHS_K, device))
    result: Tensor = flash_attn_varlen_func(
        *(q[0].to(device), *pages, *starts, 20, 45), causal=True, block_table=table.to(device)
    )
    return result


def moved_entries(device: str) -> Tensor:
    q, k, v = tensors(2, 128)
    caches = (torch.cat((t, 2 * t)).to(device) for t in (k, v))
    index, lengths = numbers(5, 0, 2).to(device), numbers(100, 1, 128).to(device)
    result: Tensor = flash_attn_with_kvcache(
        q.to(device), *caches, cache_seqlens=lengths, cache_batch_idx=index, causal=True
    )
    return result


def left_padding(device: str) -> Tensor:
    q, k, v = (t.to(device) for t in tensors(2, 100))
    k[1, :30] = v[1, :30] = torch.nan
    pads, lengths = numbers(4, 30, 0).to(device), numbers(90, 99, 1).to(device)
    result: Tensor = flash_attn_with_kvcache(
        q, k, v, cache_seqlens=lengths, cache_leftpad=pads, causal=True
    )
    return result


def one_split(device: str) -> Tensor:
    q, k, v = (t.to(device) for t in tensors(1, 700))
    result: Tensor = flash_attn_with_kvcache(q, k, v, cache_seqlens=650, num_splits=1)
    return result


def new_keys_in_pages(device: str) -> Tensor:
    q, k, v = tensors(2, 64)
    table = shuffled_table(3, 4)
    pages = (in_pages(t, table, PAGE).to(device) for t in (k, v))
    new = (t.to(device) for t in new_rows(2))
    lengths, names = numbers(15, 0, 62).to(device), table.to(device)
    result: Tensor = flash_attn_with_kvcache(
        q.to(device), *pages, *new, cache_seqlens=lengths, block_table=names, causal=True
    )
    return result


def rotated_keys_in_pages(device: str) -> Tensor:
    q, k, v = tensors(2, 60)
    table = shuffled_table(3, 5)
    pages = (in_pages(t, table, 12).to(device) for t in (k, v))
    new, turn = (t.to(device) for t in new_rows(2)), rotation(60, 32, device)
    lengths, names = numbers(15, 0, 58).to(device), table.to(device)
    result: Tensor = flash_attn_with_kvcache(
        *(q.to(device), *pages, *new, *turn, lengths), block_table=names, causal=True
    )
    return result


def pages_of_one_key(device: str) -> Tensor:
    q, k, v = tensors(2, 70)
    table = shuffled_table(3, 70)
    pages = (in_pages(t, table, 1).to(device) for t in (k, v))
    lengths, names = numbers(70, 1, 33).to(device), table.to(device)
    result: Tensor = flash_attn_with_kvcache(
        q.to(device), *pages, cache_seqlens=lengths, block_table=names, causal=True
    )
    return result


def pages_behind_padding(device: str) -> Tensor:
    result: Tensor = combined("pages pad", device)[1][0]
    return result


def pages_of_an_index(device: str) -> Tensor:
    result: Tensor = combined("pages index", device)[1][0]
    return result


def entries_of_an_index_behind_padding(device: str) -> Tensor:
    result: Tensor = combined("index pad", device)[1][0]
    return result


CALLS = [
    *(packed_queries_of_pages, moved_entries, left_padding, one_split, new_keys_in_pages),
    *(rotated_keys_in_pages, pages_of_one_key, pages_behind_padding, pages_of_an_index),
    entries_of_an_index_behind_padding,
]


def emulated(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """`attention` by the kernel that a GPU would run."""
    options.pop("deterministic")  # is about gradients
    validate = options.pop("validate")
    call = Call(q, k, v, **options)
    return plan_for(call).run(call, validate)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_kernels_agree_with_torch(
    call: Callable[[str], Tensor], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_torch = call("cpu")
    if device == "cpu":
        monkeypatch.setattr(flash_attn, "attention", emulated)
        monkeypatch.setattr(kv_cache, "update_with_torch", update_cache)
    close(call(device).cpu(), by_torch)
