# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's interface: its parameters, what they mean, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.attention import attention
from flash_attention.compat import flash_attn, flash_attn_3
from flash_attention.compat.flash_attn import flash_attn_func, flash_attn_with_kvcache
from flash_attention.errors import UnsupportedError
from flash_attention.reference.judge import cu_seqlens, generate_qkv

Function = Callable[..., Any]
dense: Function = flash_attn_3.flash_attn_func
packed_in_one: Function = flash_attn_3.flash_attn_qkvpacked_func
of_version_2: Function = flash_attn_with_kvcache
varlen: Function = flash_attn_3.flash_attn_varlen_func
with_cache: Function = flash_attn_3.flash_attn_with_kvcache

DESCALE = "q_descale=None, k_descale=None, v_descale=None"
SIGNATURES = {
    "flash_attn_func": f"q, k, v, softmax_scale=None, causal=False, qv=None, {DESCALE},"
    " window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,"
    " deterministic=False, sm_margin=0, return_attn_probs=False",
    "flash_attn_qkvpacked_func": f"qkv, softmax_scale=None, causal=False, {DESCALE},"
    " window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False,"
    " num_heads_q=None, sm_margin=0, return_attn_probs=False",
    "flash_attn_varlen_func": "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,"
    f" seqused_q=None, seqused_k=None, softmax_scale=None, causal=False, qv=None, {DESCALE},"
    " window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,"
    " deterministic=False, sm_margin=0, return_attn_probs=False",
    "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None,"
    " rotary_sin=None, cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None,"
    " page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None,"
    f" rotary_seqlens=None, {DESCALE}, softmax_scale=None, causal=False, window_size=(-1, -1),"
    " attention_chunk=0, softcap=0.0, rotary_interleaved=True, scheduler_metadata=None,"
    " num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False",
    "flash_attn_combine": "out_partial, lse_partial, out=None, out_dtype=None",
}

Q, K, V = generate_qkv(2, 6, 4, 16, torch.float32, n_heads_k=2)
BOUNDS = cu_seqlens((2, 4))
PACKED = (Q[0], K[0], V[0], BOUNDS, BOUNDS, 4, 4)
USED = torch.tensor([2, 3], dtype=torch.int32)
OPTIONS: dict[str, Any] = {
    "softmax_scale": 0.3,
    "causal": True,
    "window_size": (2, -1),
    "softcap": 3.0,
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_order_and_defaults_of_version_3(name: str) -> None:
    parameters = inspect.signature(getattr(flash_attn_3, name)).parameters.values()
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    assert ", ".join(map(str, plain)) == SIGNATURES[name]


def test_dense_tensors_of_version_3() -> None:
    wanted: Any = flash_attn_func(Q, K, V, **OPTIONS, return_attn_probs=True)
    out, lse = dense(Q, K, V, **OPTIONS, return_attn_probs=True)
    assert torch.equal(out, wanted[0])
    assert torch.equal(lse, wanted[1])
    for num_splits in (0, 1):
        given = dense(Q, K, V, 0.3, True, num_splits=num_splits, pack_gqa=True, deterministic=True)
        assert torch.equal(given, attention(Q, K, V, softmax_scale=0.3, causal=True))


def test_splits_of_version_3_divide_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def record(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Any:
        asked.append(given["split_keys"])
        return attention(q, k, v, **given)

    monkeypatch.setattr(flash_attn, "attention", record)
    dense(Q, K, V)
    dense(Q, K, V, num_splits=0)
    varlen(*PACKED)
    with_cache(Q, K, V)
    with_cache(Q, K, V, num_splits=1)
    with_cache(Q, K.repeat(1, 50, 1, 1), V.repeat(1, 50, 1, 1), num_splits=3)
    assert asked == [64, None, 64, None, 64, 128]


def test_one_tensor_of_version_3() -> None:
    one = torch.stack((K, K + 1, V), dim=2)
    assert torch.equal(packed_in_one(one, **OPTIONS), dense(K, K + 1, V, **OPTIONS))
    heads = torch.cat((Q, K, V), dim=2)
    assert torch.equal(
        packed_in_one(heads, num_heads_q=4, **OPTIONS),
        dense(Q, K, V, **OPTIONS),
    )
    with pytest.raises(UnsupportedError, match="num_heads_q is 'a'; allowed is"):
        packed_in_one(heads, num_heads_q="a", **OPTIONS)
    for count in (-2, 0, 3, 8, 10):
        with pytest.raises(UnsupportedError, match=rf"num_heads_q is {count}; allowed is \(batch"):
            packed_in_one(heads, num_heads_q=count)


@pytest.mark.parametrize("used", [None, USED], ids=["all", "some"])
def test_packed_sequences_of_version_3(used: Tensor | None) -> None:
    out, lse = varlen(*PACKED, seqused_k=used, **OPTIONS, return_attn_probs=True)
    assert lse.shape == (4, 6)
    for sequence, (start, end) in enumerate(((0, 2), (2, 6))):
        keys = slice(start, end if used is None else start + int(used[sequence]))
        wanted = dense(Q[:1, start:end], K[:1, keys], V[:1, keys], **OPTIONS)
        torch.testing.assert_close(out[start:end], wanted[0])


@pytest.mark.parametrize("packed", [False, True])
def test_a_cache_of_version_3(packed: bool) -> None:
    """In pages, with new keys; queries packed or not."""
    pages = [torch.cat((t, 2 * t)).reshape(-1, 2, 2, 16) for t in (K, V)]  # 12 pages of 2 keys
    table = torch.tensor([[11, 3, 5, 7], [0, 2, 4, 6]], dtype=torch.int32)
    k, v = K[:, :2] - 1, V[:, :2] + 1
    lengths = torch.tensor([3, 5], dtype=torch.int32)
    theirs = [page.clone() for page in pages]
    wanted = of_version_2(
        *(Q[:, :2], *theirs, k, v),
        cache_seqlens=lengths,
        block_table=table,
        **OPTIONS,
        return_softmax_lse=True,
    )
    lengths_q: dict[str, Any] = {"cu_seqlens_q": cu_seqlens((2, 2)), "max_seqlen_q": 2}
    out, lse, *rest = with_cache(
        *(Q[:, :2].flatten(0, 1) if packed else Q[:, :2], *pages, k, v),
        cache_seqlens=lengths,
        page_table=table,
        **(lengths_q if packed else {}),
        **OPTIONS,
        return_softmax_lse=True,
    )
    assert rest == [None, None]
    torch.testing.assert_close(out.reshape(2, 2, 4, 16), wanted[0])
    by_sequence = lse.reshape(4, 2, 2).transpose(0, 1) if packed else lse
    torch.testing.assert_close(by_sequence, wanted[1])
    assert all(map(torch.equal, pages, theirs))


def test_tensors_of_8_bits_are_multiplied_by_their_descale_factors() -> None:
    q, k, v = (t.to(torch.float8_e4m3fn) for t in (Q, K, V))
    heads_k = K.shape[2]
    factors = {f"{n}_descale": torch.rand(len(K), heads_k) + 0.5 for n in ("q", "v")}
    by = {n: f.repeat_interleave(Q.shape[2] // heads_k, 1) for n, f in factors.items()}
    wanted = dense(
        q.float() * by["q_descale"][:, None, :, None],
        k.float(),
        v.float() * factors["v_descale"][:, None, :, None],
    )
    out = dense(q, k, v, **factors)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), wanted, rtol=2**-7, atol=1e-3)


TENSOR = torch.ones(2)
REFUSED: list[tuple[str, Any, str]] = [
    ("qv", Q, r"qv is given.*torch\.cat\(\(q, qv\), -1\)"),
    ("q_descale", TENSOR, "q_descale is given, and q is torch.float32"),
    ("k_descale", TENSOR, "k_descale is given"),
    ("v_descale", TENSOR, "v_descale is given"),
    ("attention_chunk", 128, "attention_chunk is given.*a sequence of its own"),
    ("sm_margin", 8, "sm_margin is given.*pass 0"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_version_3_has_more_is_refused(name: str, value: Any, message: str) -> None:
    for function, args in ((dense, (Q, K, V)), (varlen, PACKED), (with_cache, (Q, K, V))):
        with pytest.raises(UnsupportedError, match=message):
            function(*args, **{name: value})


def test_what_a_cache_of_version_3_has_more_is_refused() -> None:
    cache = K.clone()
    with pytest.raises(UnsupportedError, match="leave it out"):
        with_cache(Q, cache, V, K, V, cache_seqlens=0, scheduler_metadata=TENSOR)
    assert torch.equal(cache, K)


def test_positions_mean_nothing_without_angles() -> None:
    lengths, new = torch.tensor([0, 3], dtype=torch.int32), (K[:, 4:] + 1, V[:, 4:])
    results = []
    for positions in (None, lengths):
        caches = [K.clone(), V.clone()]
        out = with_cache(Q, *caches, *new, cache_seqlens=lengths, rotary_seqlens=positions)
        results.append((out, *caches))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("seqlens", [None, (1, 4)])
def test_keys_of_version_3_are_rotated(seqlens: tuple[int, int] | None) -> None:
    angle = torch.rand(8, 8) * 6
    tables = {"rotary_cos": angle.cos(), "rotary_sin": angle.sin()}
    lengths, new = (0, 3), (K[:, 4:] + 1, V[:, 4:])
    given = None if seqlens is None else torch.tensor(seqlens, dtype=torch.int32)
    caches = [K.clone(), V.clone()]
    with_cache(
        *(Q[:, :2], *caches, *new),
        cache_seqlens=torch.tensor(lengths, dtype=torch.int32),
        **tables,
        rotary_seqlens=given,
        rotary_interleaved=False,
        causal=True,
    )
    for entry, (n, first) in enumerate(zip(lengths, seqlens or lengths, strict=True)):
        cos, sin = (t[first : first + 2, None] for t in tables.values())
        low, high = new[0][entry].chunk(2, -1)
        turned = torch.cat((low * cos - high * sin, low * sin + high * cos), -1)
        torch.testing.assert_close(caches[0][entry, n : n + 2], turned)
        assert torch.equal(caches[1][entry, n : n + 2], new[1][entry])


def test_packed_queries_of_version_3_are_rotated_at_their_positions() -> None:
    angle = torch.rand(8, 8) * 6
    tables = {"rotary_cos": angle.cos(), "rotary_sin": angle.sin()}
    lengths, new = torch.tensor([0, 3], dtype=torch.int32), (K[:, 4:] + 1, V[:, 4:])
    option: dict[str, Any] = {"cache_seqlens": lengths, "causal": True, **tables}
    rows = torch.cat((Q[0, :1], Q[1, :2]))
    out = with_cache(
        *(rows, K.clone(), V.clone(), *new),
        cu_seqlens_q=cu_seqlens((1, 2)),
        max_seqlen_q=2,
        **option,
    )
    for entry, count in enumerate((1, 2)):
        some = slice(entry, entry + 1)
        caches = (K[some].clone(), V[some].clone(), *(t[some] for t in new))
        wanted = with_cache(Q[some, :count], *caches, **{**option, "cache_seqlens": lengths[some]})
        torch.testing.assert_close(out[entry : entry + count], wanted[0])


@pytest.mark.parametrize("keys", [None, USED], ids=["all keys", "some keys"])
def test_queries_of_version_3_that_are_not_used_are_left_out(keys: Tensor | None) -> None:
    used = torch.tensor([1, 3], dtype=torch.int32)
    out, lse = varlen(*PACKED, used, keys, **OPTIONS, return_attn_probs=True)
    for sequence, (start, end) in enumerate(((0, 2), (2, 6))):
        rows = slice(start, start + int(used[sequence]))
        seen = slice(start, end if keys is None else start + int(keys[sequence]))
        wanted, wanted_lse = dense(
            Q[:1, rows], K[:1, seen], V[:1, seen], **OPTIONS, return_attn_probs=True
        )
        torch.testing.assert_close(out[rows], wanted[0])
        torch.testing.assert_close(lse[:, rows], wanted_lse[0])
    for row in (1, 5):
        assert not out[row].any()
        assert bool((lse[:, row] == -torch.inf).all())


def test_queries_that_are_not_used_leave_every_sequence_its_keys_and_factors() -> None:
    q, k, v = (t[0].to(torch.float8_e4m3fn) for t in (Q, K, V))
    factors = {f"{n}_descale": torch.rand(2, K.shape[2]) + 0.5 for n in "qkv"}
    used = torch.tensor([1, 3], dtype=torch.int32)
    out = varlen(q, k, v, BOUNDS, cu_seqlens((5, 1)), 4, 5, used, **factors)
    for sequence, (rows, keys) in enumerate(((slice(1), slice(5)), (slice(2, 5), slice(5, 6)))):
        its_own = {name: factor[sequence][None] for name, factor in factors.items()}
        wanted = dense(q[None, rows], k[None, keys], v[None, keys], **its_own)
        torch.testing.assert_close(out[rows], wanted[0])


@pytest.mark.gpu
def test_a_gpu_leaves_out_queries_that_are_not_used() -> None:
    q, k, v = (t[0].bfloat16() for t in generate_qkv(1, 90, 4, 64, torch.float32, n_heads_k=2))
    starts, used = cu_seqlens((40, 0, 50)), torch.tensor([39, 0, 7], dtype=torch.int32)
    given = (q, k, v, starts, starts, 50, 50, used)
    wanted = varlen(*given, causal=True, return_attn_probs=True)
    moved = (t.cuda() if isinstance(t, Tensor) else t for t in given)
    for mine, theirs in zip(
        varlen(*moved, causal=True, return_attn_probs=True), wanted, strict=True
    ):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1.6e-2, atol=1.6e-2)


def test_gradients_of_version_3_leave_out_queries_that_are_not_used() -> None:
    used = torch.tensor([1, 3], dtype=torch.int32)
    q, k, v = (t[0].clone().requires_grad_() for t in (Q, K, V))
    out = varlen(q, k, v, *PACKED[3:], used, causal=True)
    found = torch.autograd.grad(out.square().sum(), (q, k, v))
    mine = [t[0].clone().requires_grad_() for t in (Q, K, V)]
    total = torch.zeros(())
    for start, end, count in ((0, 2, 1), (2, 6, 3)):
        rows = (mine[0][start : start + count], mine[1][start:end], mine[2][start:end])
        total = total + dense(*(t[None] for t in rows), causal=True).square().sum()
    for given, wanted in zip(found, torch.autograd.grad(total, mine), strict=True):
        torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize(
    ("used", "message"),
    [
        ((3, 1), r"seqused_q\[0\] is 3; sequence 0 of q has 2 rows, allowed are 0 to 2"),
        ((0, -1), r"seqused_q\[1\] is -1"),
        ((1,), r"seqused_q has shape \(1,\) .* it must be \(2,\), torch\.int32"),
    ],
)
def test_used_queries_of_version_3_are_some_of_a_sequence(
    used: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        varlen(*PACKED, seqused_q=torch.tensor(used, dtype=torch.int32))


def test_a_second_product_of_scores_is_a_longer_head() -> None:
    """What the refusal of qv says to do."""
    qv = Q.flip(1)
    keys, values = (t.repeat_interleave(2, dim=2) for t in (K, V))
    scores = torch.einsum("bihd,bjhd->bhij", Q, keys) + torch.einsum("bihd,bjhd->bhij", qv, values)
    weights = (scores * 32**-0.5).softmax(-1)
    given = dense(torch.cat((Q, qv), -1), torch.cat((K, V), -1), V)
    torch.testing.assert_close(given, torch.einsum("bhij,bjhd->bihd", weights, values))


def parts_of_keys() -> tuple[Tensor, Tensor]:
    """Outputs and log-sum-exps over parts of the keys, as flash_attn_combine takes them."""
    parts = [
        attention(Q, k, v, return_lse=True)
        for k, v in zip(K.split(3, 1), V.split(3, 1), strict=True)
    ]
    outs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
    return outs, lses.mT


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("given", [False, True], ids=["new", "given"])
def test_parts_are_combined(given: bool, dtype: torch.dtype | None) -> None:
    outs, lses = parts_of_keys()
    room = torch.empty(Q.shape, dtype=dtype or torch.float32) if given else None
    out, lse = flash_attn_3.flash_attn_combine(outs, lses, room, dtype)
    assert room is None or out is room
    wanted, wanted_lse = attention(Q, K, V, return_lse=True)
    torch.testing.assert_close(out, wanted.to(dtype or torch.float32))
    torch.testing.assert_close(lse, wanted_lse.mT)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"out_partial": Q}, r"they must be \(parts, batch, seq, heads, d\) and"),
        ({"out_partial": Q, "lse_partial": Q[..., 0]}, r"lse_partial \(2, 6, 4\); they must be"),
        ({"lse_partial": torch.zeros(2, 2, 4, 6)}, r"lse_partial \(2, 2, 4, 6\)"),
        ({"out_partial": Q.half()[None]}, "pass torch.float32, or call flash_attention.merge"),
        ({"out_dtype": torch.float64}, "out_dtype is torch.float64; allowed are"),
        ({"out": Q.half()}, r"out has .* is torch\.float16 on cpu; it must be \(2, 6, 4, 16\)"),
        ({"out_partial": None}, "out_partial is a NoneType"),
    ],
    ids=["dims", "no batch", "lse", "16 bits", "dtype", "out", "none"],
)
def test_what_cannot_be_combined_is_refused(changed: dict[str, Any], message: str) -> None:
    outs, lses = parts_of_keys()
    given = {"out_partial": outs, "lse_partial": lses, **changed}
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_3.flash_attn_combine(**given)
    with pytest.raises(UnsupportedError, match="lse_partial is on meta, out_partial is on cpu"):
        flash_attn_3.flash_attn_combine(outs, lses.to("meta"))


def test_the_kernels_schedule_their_tiles() -> None:
    with pytest.raises(UnsupportedError, match="leave scheduler_metadata out"):
        flash_attn_3.get_scheduler_metadata(1, 1, 1, 1, 1, 64, USED)


@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_of_version_3_are_those_of_torch(deterministic: bool) -> None:
    def gradients(function: Function, *given: Tensor, **options: Any) -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in given]
        return torch.autograd.grad(function(*leaves, **options).square().sum(), leaves)

    def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        return out.transpose(1, 2)

    option: dict[str, Any] = {"causal": True, "deterministic": deterministic}
    wanted = gradients(by_torch, Q, K, V)
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    for given, exact in zip(gradients(dense, Q, K, V, **option), wanted, strict=True):
        close(given, exact)
    (of_heads,) = gradients(packed_in_one, torch.cat((Q, K, V), 2), num_heads_q=4, **option)
    close(of_heads, torch.cat(wanted, 2))
    bounds = cu_seqlens((6, 6))
    lengths: dict[str, Any] = {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds}
    lengths |= {"max_seqlen_q": 6, "max_seqlen_k": 6}
    packed = gradients(varlen, *(t.flatten(0, 1) for t in (Q, K, V)), **lengths, **option)
    for given, exact in zip(packed, wanted, strict=True):
        close(given, exact.flatten(0, 1))
