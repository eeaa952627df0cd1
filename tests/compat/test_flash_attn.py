# SPDX-License-Identifier: Apache-2.0
"""What flash-attn has and this package lacks is refused, with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from flash_attention import attention
from flash_attention.compat import flash_attn_3 as version_3
from flash_attention.compat.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from flash_attention.errors import UnsupportedError
from flash_attention.reference.judge import cu_seqlens, generate_qkv

Q, K, V = generate_qkv(2, 6, 2, 16, torch.float32)
QKV = torch.stack((Q, K, V), dim=2)
BOUNDS = cu_seqlens((2, 4))
PACKED = (Q[0], K[0], V[0], BOUNDS, BOUNDS, 4, 4)
TABLE = torch.zeros(2, 1, dtype=torch.int32)
IDX = torch.zeros(2, dtype=torch.int32)


WITHOUT_A_CACHE: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    (flash_attn_func, (Q, K, V)),
    (flash_attn_kvpacked_func, (Q, QKV[:, :, 1:])),
    (flash_attn_qkvpacked_func, (QKV,)),
    (flash_attn_varlen_func, PACKED),
    (flash_attn_varlen_qkvpacked_func, (QKV[0], BOUNDS, 4)),
)


def test_dropout_follows_from_the_generator_in_every_function() -> None:
    packed = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), (BOUNDS, BOUNDS), strict=True))
    lengths: dict[str, Any] = {**packed, "max_seqlen_q": 4, "max_seqlen_k": 4}
    for function, args in WITHOUT_A_CACHE:
        torch.manual_seed(5)
        state = torch.randint((1 << 63) - 1, (2,))
        torch.manual_seed(5)
        out = function(*args, dropout_p=0.25)
        tensors, options = ((Q, K, V), {}) if out.ndim == 4 else (PACKED[:3], lengths)
        wanted = attention(*tensors, **options, dropout_p=0.25, rng_state=state)
        torch.testing.assert_close(out, wanted)
        assert not torch.equal(out, attention(*tensors, **options))
        with pytest.raises(UnsupportedError, match=r"dropout_p is 1\.0; allowed are"):
            function(*args, dropout_p=1.0)


COS = torch.ones(8, 8)
NEW: dict[str, Any] = {"k": K[:, :1], "v": V[:, :1], "cache_seqlens": 2}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"rotary_cos": COS}, "rotary_sin is missing; pass rotary_cos and rotary_sin together"),
        ({"rotary_sin": COS}, "rotary_cos is missing"),
        ({"rotary_cos": COS, "rotary_sin": COS, "k": None}, "k is missing; .* to rotate q and k"),
        ({"rotary_cos": COS, "rotary_sin": COS[:, :4]}, r"rotary_sin \(8, 4\); both must be"),
        ({"rotary_cos": COS[:, :4], "rotary_sin": COS[:, :4]}, "a rotary_dim of 8; .* of 16 up to"),
        ({"rotary_cos": COS.repeat(1, 2), "rotary_sin": COS.repeat(1, 2)}, "head dimension, 16"),
        ({"rotary_cos": COS.half(), "rotary_sin": COS}, r"rotary_cos is torch\.float16 .* q is"),
        ({"rotary_cos": COS[:5], "rotary_sin": COS[:5]}, "5 rows; .* room for 6 keys, pass as"),
        ({"rotary_cos": [1.0], "rotary_sin": COS}, "rotary_cos is a list; pass a torch.Tensor"),
        ({"rotary_cos": COS, "rotary_sin": [1.0]}, "rotary_sin is a list; pass a torch.Tensor"),
        (
            {"rotary_cos": COS, "rotary_sin": COS, "rotary_interleaved": "yes"},
            "rotary_interleaved is 'yes'; pass True or False",
        ),
        (
            {"rotary_cos": COS, "rotary_sin": COS, "cache_seqlens": 5, "causal": True},
            "sequence 0 has the positions 5 to 10; .* have 8 rows, pass at least 11",
        ),
    ],
    ids=[
        *("no sin", "no cos", "no key", "shapes", "dim 8", "dim 32", "dtype", "rows", "list"),
        *("list of sin", "switch", "positions"),
    ],
)
def test_rotary_embeddings_fit_the_new_keys(option: dict[str, Any], message: str) -> None:
    cache = K.clone()
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_with_kvcache(Q, cache, V.clone(), **{**NEW, **option})
    assert torch.equal(cache, K)


@pytest.mark.parametrize("splits", [-1, 2.0, None, True])
def test_splits_are_a_number(splits: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"num_splits is .*; pass into how many splits"):
        flash_attn_with_kvcache(Q, K, V, num_splits=splits)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"k": K}, "v, cache_seqlens is missing"),
        ({"k": K, "v": V}, "cache_seqlens is missing"),
        ({"k": K, "v": V[:, 1:], "cache_seqlens": 0}, r"v has shape \(2, 5, 2, 16\)"),
        ({"k": K[:, :, :1], "v": V, "cache_seqlens": 0}, r"heads_k, d\) = \(2, 6, 2, 16\)"),
        ({"k": K, "v": V.half(), "cache_seqlens": 0}, r"v has .* and is torch\.float16"),
    ],
    ids=["k", "kv", "rows", "heads", "dtype"],
)
def test_new_keys_come_with_values_lengths_and_the_shape_of_the_cache(
    option: dict[str, Any], message: str
) -> None:
    cache = K.clone()
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_with_kvcache(Q, cache, V.clone(), **option)
    assert torch.equal(cache, K)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            {"cache_batch_idx": IDX.long()},
            r"cache_batch_idx .* is torch\.int64; pass a",
        ),
        ({"cache_leftpad": TABLE}, r"cache_leftpad has shape \(2, 1\)"),
        ({"block_table": TABLE.to("meta")}, "block_table is on meta, the cache on cpu; move it"),
        ({"block_table": IDX.repeat(2, 2).mT}, "last dimension of block_table has stride 4"),
    ],
    ids=["dtype", "shape", "device", "stride"],
)
def test_a_cache_is_described_by_rows_of_integers(option: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_with_kvcache(Q, K, V, **option)


def test_left_padded_entries_lie_side_by_side() -> None:
    wider = torch.cat((K, K), dim=1)[:, :6]
    with pytest.raises(UnsupportedError, match=r"entries of k_cache lie .*k_cache\.contiguous"):
        flash_attn_with_kvcache(Q, wider, V, cache_leftpad=IDX)


def test_one_left_padded_entry_may_be_part_of_a_longer_one() -> None:
    longer = [torch.cat((t, t + 1), dim=1)[:1, :6] for t in (K, V)]
    assert longer[0].stride(0) != 6 * longer[0].stride(1)
    pad = torch.tensor([2], dtype=torch.int32)
    out = flash_attn_with_kvcache(Q[:1], longer[0], longer[1], cache_leftpad=pad)
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out, attention(Q[:1], K[:1, 2:], V[:1, 2:]))


def test_a_table_of_one_column_may_have_any_stride() -> None:
    table = torch.tensor([1, 9, 0, 9], dtype=torch.int32).as_strided((2, 1), (2, 2))
    out = flash_attn_with_kvcache(Q, K, V, block_table=table)
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out, attention(Q, K.flip(0), V.flip(0)))


def test_pages_of_a_cache_in_full_use_exist() -> None:
    table = torch.tensor([[0], [2]], dtype=torch.int32)
    with pytest.raises(
        UnsupportedError, match=r"block_table\[1, 0\] is 2, and sequence 1 has 6 keys"
    ):
        flash_attn_with_kvcache(Q, K, V, block_table=table)


def test_packed_tensors_have_three_or_two_matrices() -> None:
    with pytest.raises(UnsupportedError, match=r"qkv has shape .*\(batch, seq, 3, heads, d\)"):
        flash_attn_qkvpacked_func(QKV[:, :, :2])
    with pytest.raises(UnsupportedError, match=r"kv has shape .*\(batch, seq, 2, heads, d\)"):
        flash_attn_kvpacked_func(Q, QKV)
    with pytest.raises(UnsupportedError, match=r"qkv has shape .*\(total, 3, heads, d\)"):
        flash_attn_varlen_qkvpacked_func(QKV, BOUNDS, 4)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_refused(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([Q[0], Q[0, :3]], layout=layout)
    with pytest.raises(UnsupportedError, match=r"q is a nested tensor; .* with cu_seqlens"):
        flash_attn_func(nested, nested, nested)


@pytest.mark.parametrize("of", ["q", "k_cache", "v_cache"])
@pytest.mark.parametrize("function", [flash_attn_with_kvcache, version_3.flash_attn_with_kvcache])
def test_a_cache_has_no_gradient(function: Any, of: str) -> None:
    given = {"q": Q, "k_cache": K, "v_cache": V}
    given[of] = given[of].clone().requires_grad_()
    wanted = attention(Q, K, V, return_lse=True)
    out, lse, *_ = function(**given, return_softmax_lse=True)
    assert all(map(torch.equal, (out, lse), wanted))
    for result in (out, lse):
        with pytest.raises(UnsupportedError, match=r"has no gradient; call .*attention, which has"):
            result.sum().backward()
    with torch.no_grad():
        alone = function(**given)
    assert torch.equal(alone, attention(Q, K, V))
    assert not alone.requires_grad


@pytest.mark.parametrize("function", [flash_attn_with_kvcache, version_3.flash_attn_with_kvcache])
def test_new_keys_of_a_gradient_are_stored(function: Any) -> None:
    k, v = ((t[:, :1] + 1).requires_grad_() for t in (K, V))
    caches, wanted = [K.clone(), V.clone()], [K.clone(), V.clone()]
    out = function(Q, *caches, k, v, cache_seqlens=2)
    with torch.no_grad():
        assert torch.equal(out, function(Q, *wanted, k, v, cache_seqlens=2))
    assert all(map(torch.equal, caches, wanted))
    assert not any(cache.requires_grad for cache in caches)
    with pytest.raises(UnsupportedError, match="flash_attn_with_kvcache has no gradient"):
        out.sum().backward()


def test_a_backward_pass_that_would_be_traced_is_refused() -> None:
    message = "flash_attn_with_kvcache has no gradient"
    with pytest.raises(UnsupportedError, match=message):
        torch.func.grad(lambda q: cast(Any, flash_attn_with_kvcache(q, K, V)).sum())(Q)
    torch._dynamo.reset()
    compiled = torch.compile(flash_attn_with_kvcache, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=message):
        compiled(Q.clone().requires_grad_(), K, V)
    with torch.no_grad():
        out = compiled(Q.clone().requires_grad_(), K, V)
    torch.testing.assert_close(out, attention(Q, K, V))


def test_pages_have_a_result_and_no_gradient() -> None:
    table = torch.arange(4, dtype=torch.int32).view(2, 2)
    pages = [t.reshape(4, 3, 2, 16).clone().requires_grad_() for t in (K, V)]
    q, bounds = Q.flatten(0, 1), cu_seqlens((6, 6))
    function: Any = flash_attn_varlen_func
    out = function(q, *pages, bounds, bounds, 6, 6, block_table=table)
    torch.testing.assert_close(out.unflatten(0, (2, 6)), attention(Q, K, V))
    with pytest.raises(UnsupportedError, match="no gradients of a paged KV cache"):
        out.sum().backward()


@pytest.mark.parametrize(
    "window", [[2, 1], torch.tensor([2, 1]), (torch.tensor(2), 1)], ids=["list", "tensor", "tuple"]
)
@pytest.mark.parametrize("function", [flash_attn_func, version_3.flash_attn_func])
def test_a_window_may_be_a_tensor(function: Any, window: Any) -> None:
    assert torch.equal(function(Q, K, V, window_size=window), attention(Q, K, V, window=(2, 1)))


@pytest.mark.parametrize(
    "window", [torch.tensor([2.0, 1.0]), torch.tensor(2), torch.tensor([2, 1, 0]), [2], [2, "1"]]
)
def test_a_window_is_two_whole_numbers(window: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"window_size is .*; (pass a tuple|each side is)"):
        flash_attn_func(Q, K, V, window_size=window)


@pytest.mark.parametrize("of", ["q", "k"])
def test_longest_lengths_are_needed(of: str) -> None:
    lengths: dict[str, Any] = {"max_seqlen_q": 4, "max_seqlen_k": 4, f"max_seqlen_{of}": None}
    message = rf"cu_seqlens_{of} is given without max_seqlen_{of}; pass the length"
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_varlen_func(*PACKED[:5], **lengths)


def test_pages_need_no_longest_length_of_keys() -> None:
    table = TABLE + torch.arange(2, dtype=torch.int32)[:, None]
    function: Any = flash_attn_varlen_func
    args = (Q[0], K[:, :2], V[:, :2], cu_seqlens((2, 4)), cu_seqlens((1, 2)), 4)
    given, wanted = (function(*args, longest, block_table=table) for longest in (None, 2))
    assert torch.equal(given, wanted)


@pytest.mark.parametrize("page_keys", [1, 2, 3])
def test_pages_up_to_the_longest_length_are_read(page_keys: int) -> None:
    """The last page is read in part. Those behind it do not exist."""
    lengths = (5, 4)
    pages = [t.reshape(-1, page_keys, *t.shape[2:]) for t in (K, V)]
    table = torch.arange(len(pages[0]), dtype=torch.int32).view(2, -1)
    needed = -(-max(lengths) // page_keys)
    wider = torch.cat((table[:, :needed], torch.full((2, 3), 99, dtype=torch.int32)), 1)
    function: Any = flash_attn_varlen_func
    args = (Q[0], *pages, BOUNDS, cu_seqlens(lengths), 4, 5)
    out = function(*args, block_table=wider)
    for rows, entry in ((slice(0, 2), 0), (slice(2, 6), 1)):
        keys = (entry, slice(0, lengths[entry]))
        wanted = attention(Q[:1, rows], K[keys][None], V[keys][None])
        torch.testing.assert_close(out[rows], wanted[0])


def test_pages_without_rows_hold_no_keys() -> None:
    pages, nothing = torch.zeros(3, 0, 2, 16), cu_seqlens((0, 0))
    out = flash_attn_varlen_func(Q[0], pages, pages, BOUNDS, nothing, 4, 4, block_table=TABLE)
    assert isinstance(out, torch.Tensor)
    assert torch.equal(out, torch.zeros_like(Q[0]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "is a NoneType; pass a torch.Tensor"),
        (torch.tensor(1.0), "has no dimensions; pass a torch.Tensor"),
        (Q.to_sparse(), r"has layout torch\.sparse_coo; pass a dense tensor"),
        (Q[..., :0], "scores need a d_head of at least 1|must agree in"),
    ],
    ids=["None", "number", "sparse", "no columns"],
)
@pytest.mark.parametrize("place", range(3))
def test_q_k_and_v_are_dense_tensors(place: int, given: Any, message: str) -> None:
    args: list[Any] = [Q, K, V]
    args[place] = given
    if given is not None and not given.is_sparse and given.ndim:
        args = [given] * 3
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_func(*args)


@pytest.mark.parametrize("length", [4.0, "4", torch.tensor(4.0), torch.tensor([4, 4])])
def test_longest_lengths_are_whole_numbers(length: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"max_seqlen_q is .*pass the length of the longest"):
        flash_attn_varlen_func(*PACKED[:5], length, 4)
    pages = (Q[0], K, V, BOUNDS, BOUNDS, 4, length)
    with pytest.raises(UnsupportedError, match=r"max_seqlen_k is .*pass the length of the longest"):
        flash_attn_varlen_func(*pages, block_table=TABLE)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"block_table": [[0]]}, r"block_table is a list; .* \(batch, pages\)"),
        ({"block_table": IDX}, r"block_table has shape \(2\)"),
        ({"cu_seqlens_k": None}, r"cu_seqlens_k is a NoneType; .* \(batch \+ 1\)"),
        ({"k": K[0, 0, 0]}, r"k has 1 dimensions, .* since block_table is given"),
        ({"k": None}, r"k is a NoneType; pass a torch\.Tensor"),
    ],
    ids=["list", "vector", "no lengths", "no pages", "no k"],
)
def test_pages_are_described_by_tensors(changed: dict[str, Any], message: str) -> None:
    pages = torch.zeros(3, 16, 2, 16)
    given = {"k": pages, "v": pages, "cu_seqlens_k": BOUNDS, "block_table": TABLE, **changed}
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_varlen_func(Q[0], cu_seqlens_q=BOUNDS, max_seqlen_q=4, max_seqlen_k=4, **given)
