# SPDX-License-Identifier: Apache-2.0
"""What flash-attn 2 promises, parameter by parameter, against masks written out here."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import autograd
from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.compat import flash_attn, flash_attn_3
from flash_attention.launch.compute import compute_gradients
from flash_attention.reference.judge import cu_seqlens, generate_qkv
from tests.decode_cases import in_pages, shuffled_table

Function = Callable[..., Any]  # their results have the shape that the options say
flash_attn_func: Function = flash_attn.flash_attn_func
flash_attn_varlen_func: Function = flash_attn.flash_attn_varlen_func
flash_attn_with_kvcache: Function = flash_attn.flash_attn_with_kvcache

COMMON = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,"
    " alibi_slopes=None, deterministic=False, return_attn_probs=False"
)
SIGNATURES = {
    "flash_attn_func": f"q, k, v, {COMMON}",
    "flash_attn_kvpacked_func": f"q, kv, {COMMON}",
    "flash_attn_qkvpacked_func": f"qkv, {COMMON}",
    "flash_attn_varlen_func": "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,"
    f" {COMMON}, block_table=None",
    "flash_attn_varlen_kvpacked_func": "q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,"
    f" max_seqlen_k, {COMMON}",
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {COMMON}",
    "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, rotary_cos=None,"
    " rotary_sin=None, cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None,"
    " block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,"
    " rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_order_and_defaults(name: str) -> None:
    parameters = inspect.signature(getattr(flash_attn, name)).parameters.values()
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    assert ", ".join(map(str, plain)) == SIGNATURES[name]
    assert name in flash_attn.__all__


def tensors(seq_q: int, seq_k: int, d: int = 16, heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    return generate_qkv(2, seq_q, heads, d, torch.float32, seq_len_k=seq_k, n_heads_k=2)


def expected(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Output and lse of one call whose mask, (seq_q, seq_k), is written out."""
    shared = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(shared, dim=2) for t in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5)
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhij,bjhd->bihd", weights, v), scores.logsumexp(-1)


def check(result: Any, wanted: tuple[Tensor, Tensor]) -> None:
    out, lse, probabilities = result
    assert probabilities is None
    assert lse.dtype == torch.float32
    torch.testing.assert_close(out, wanted[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse, wanted[1], rtol=1e-5, atol=1e-5)


def test_the_layout_is_batch_seq_heads_d_and_only_out_comes_back() -> None:
    q, k, v = tensors(5, 7)
    out = flash_attn_func(q, k, v)
    assert isinstance(out, Tensor)
    assert out.shape == (2, 5, 4, 16)
    torch.testing.assert_close(out, expected(q, k, v)[0])


def test_v_may_have_another_head_dimension() -> None:
    q, k, v = tensors(5, 7)
    wider = torch.cat((v, 2 * v), dim=-1)
    out = flash_attn_func(q, k, wider)
    assert out.shape == (2, 5, 4, 32)
    torch.testing.assert_close(out, expected(q, k, wider)[0])


def test_return_attn_probs_adds_the_lse_and_no_probabilities() -> None:
    q, k, v = tensors(5, 7)
    result = flash_attn_func(q, k, v, return_attn_probs=True)
    check(result, expected(q, k, v))
    assert result[1].shape == (2, 4, 5)


def test_heads_are_shared_by_neighbours() -> None:
    q, k, v = tensors(3, 3)
    out = flash_attn_func(q, k, v)
    for head, shared in enumerate((0, 0, 1, 1)):
        alone = flash_attn_func(
            *(t[:, :, i : i + 1] for t, i in ((q, head), (k, shared), (v, shared)))
        )
        torch.testing.assert_close(out[:, :, head], alone[:, :, 0])


def test_a_causal_mask_of_two_queries_and_five_keys_ends_at_the_last_key() -> None:
    q, k, v = tensors(2, 5)
    visible = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    check(flash_attn_func(q, k, v, causal=True, return_attn_probs=True), expected(q, k, v, visible))


def test_a_causal_mask_of_five_queries_and_two_keys_leaves_rows_without_keys() -> None:
    q, k, v = tensors(5, 2)
    visible = torch.tensor([[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]], dtype=torch.bool)
    result = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    check(result, expected(q, k, v, visible))
    assert not result[0][:, :3].any()
    assert bool((result[1][:, :, :3] == -math.inf).all())


@pytest.mark.parametrize(
    ("window", "causal", "visible"),
    [
        ((1, 0), False, [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]),
        ((0, 1), False, [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]),
        ((0, 0), False, [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]),
        ((-1, 1), False, [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]),
        ((1, -1), False, [[0, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]),
        ((1, 1), True, [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]),
        ((-1, -1), True, [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
        ((-1, -1), False, [[1, 1, 1, 1, 1]] * 3),
    ],
)
def test_windows_include_both_ends(
    window: tuple[int, int], causal: bool, visible: list[list[int]]
) -> None:
    q, k, v = tensors(3, 5)
    result = flash_attn_func(q, k, v, causal=causal, window_size=window, return_attn_probs=True)
    check(result, expected(q, k, v, torch.tensor(visible, dtype=torch.bool)))


def test_the_softcap_bounds_scaled_scores() -> None:
    q, k, v = tensors(3, 5)
    shared = k.repeat_interleave(2, dim=2)
    scores = torch.einsum("bihd,bjhd->bhij", 3 * q, shared) * 0.5
    weights = (1.5 * torch.tanh(scores / 1.5)).softmax(-1)
    out = torch.einsum("bhij,bjhd->bihd", weights, v.repeat_interleave(2, dim=2))
    torch.testing.assert_close(flash_attn_func(3 * q, k, v, softmax_scale=0.5, softcap=1.5), out)


@pytest.mark.parametrize("d", [12, 20])
def test_the_scale_is_that_of_the_head_dimension_before_padding(d: int) -> None:
    q, k, v = tensors(3, 5, d)
    result = flash_attn_func(q, k, v, return_attn_probs=True)
    check(result, expected(q, k, v))
    assert result[0].shape[-1] == d
    check(
        flash_attn_func(q, k, v, softmax_scale=0.1, return_attn_probs=True),
        expected(q, k, v, scale=0.1),
    )


def test_a_last_dimension_that_is_not_contiguous_is_copied() -> None:
    q, k, v = tensors(3, 5)
    spread = tuple(t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in (q, k, v))
    assert spread[0].stride(-1) != 1
    torch.testing.assert_close(flash_attn_func(*spread), expected(q, k, v)[0])


def test_packed_sequences_are_attended_to_apart_and_the_lse_is_heads_by_total() -> None:
    lengths_q, lengths_k = (3, 1, 4), (5, 2, 2)
    q = tensors(8, 1)[0][0]
    k, v = (t[0] for t in tensors(1, 9)[1:])
    out, lse, none = flash_attn_varlen_func(
        *(q, k, v, cu_seqlens(lengths_q), cu_seqlens(lengths_k), 4, 5),
        causal=True,
        return_attn_probs=True,
    )
    assert none is None
    assert (out.shape, lse.shape) == ((8, 4, 16), (4, 8))
    parts = zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True)
    alone = [
        flash_attn_func(*(t[None] for t in part), causal=True, return_attn_probs=True)
        for part in parts
    ]
    torch.testing.assert_close(out, torch.cat([result[0][0] for result in alone]))
    torch.testing.assert_close(lse, torch.cat([result[1][0] for result in alone], dim=1))


def test_lengths_may_be_tensors_as_data_collators_make_them() -> None:
    q, k, v = (t[0] for t in tensors(8, 8))
    bounds = cu_seqlens((3, 5))
    longest = bounds.diff().max()
    by_tensor = flash_attn_varlen_func(q, k, v, bounds, bounds, longest, longest)
    torch.testing.assert_close(
        by_tensor, flash_attn_varlen_func(q, k, v, bounds, bounds, 5, 5), rtol=0, atol=0
    )


def test_packed_tensors_are_split_before_the_heads() -> None:
    q, k, v = generate_qkv(2, 8, 4, 16, torch.float32)
    kv, qkv = torch.stack((k, v), dim=2), torch.stack((q, k, v), dim=2)
    bounds = cu_seqlens((3, 5))
    plain = flash_attn_func(q, k, v, causal=True)
    torch.testing.assert_close(flash_attn.flash_attn_kvpacked_func(q, kv, causal=True), plain)
    torch.testing.assert_close(flash_attn.flash_attn_qkvpacked_func(qkv, causal=True), plain)
    apart = flash_attn_varlen_func(q[0], k[0], v[0], bounds, bounds, 5, 5, causal=True)
    for result in (
        flash_attn.flash_attn_varlen_kvpacked_func(q[0], kv[0], bounds, bounds, 5, 5, causal=True),
        flash_attn.flash_attn_varlen_qkvpacked_func(qkv[0], bounds, 5, causal=True),
    ):
        torch.testing.assert_close(result, apart)


@pytest.mark.parametrize("causal", [False, True])
def test_a_cache_is_read_as_far_as_it_is_filled(causal: bool) -> None:
    q, k, v = tensors(2, 9)
    filled = (4, 9)
    out, lse = flash_attn_with_kvcache(
        *(q, k, v),
        cache_seqlens=torch.tensor(filled, dtype=torch.int32),
        causal=causal,
        return_softmax_lse=True,
    )
    for entry, n in enumerate(filled):
        alone = flash_attn_func(
            *(q[entry : entry + 1], k[entry : entry + 1, :n], v[entry : entry + 1, :n]),
            causal=causal,
            return_attn_probs=True,
        )
        check((out[entry : entry + 1], lse[entry : entry + 1], None), (alone[0], alone[1]))


def test_one_length_serves_all_entries_and_none_is_the_whole_cache() -> None:
    q, k, v = tensors(1, 9)
    torch.testing.assert_close(
        flash_attn_with_kvcache(q, k, v, cache_seqlens=6), flash_attn_func(q, k[:, :6], v[:, :6])
    )
    torch.testing.assert_close(flash_attn_with_kvcache(q, k, v), flash_attn_func(q, k, v))


@pytest.mark.parametrize(
    "lengths", [5, torch.tensor([3, 6], dtype=torch.int32)], ids=["int", "tensor"]
)
def test_new_keys_are_stored_behind_the_filled_part_and_seen(lengths: int | Tensor) -> None:
    q, k, v = tensors(2, 9)
    _, new_k, new_v = generate_qkv(2, 2, 4, 16, torch.float32, "cpu", 5, n_heads_k=2)
    cache_k, cache_v = k.clone(), v.clone()
    out = flash_attn_with_kvcache(
        q, cache_k, cache_v, new_k, new_v, cache_seqlens=lengths, causal=True
    )
    starts = [lengths] * 2 if isinstance(lengths, int) else lengths.tolist()
    for entry, n in enumerate(starts):
        k[entry, n : n + 2], v[entry, n : n + 2] = new_k[entry], new_v[entry]
        alone = flash_attn_func(
            *(t[entry : entry + 1] for t in (q, k[:, : n + 2], v[:, : n + 2])), causal=True
        )
        torch.testing.assert_close(out[entry], alone[0])
    assert torch.equal(cache_k, k)
    assert torch.equal(cache_v, v)


@pytest.mark.parametrize("lengths", [5, (3, 6)], ids=["int", "tensor"])
def test_a_cache_in_pages_is_read_and_stored_to(lengths: int | tuple[int, ...]) -> None:
    q, k, v = tensors(2, 12)
    _, new_k, new_v = generate_qkv(2, 2, 4, 16, torch.float32, "cpu", 5, n_heads_k=2)
    table = shuffled_table(2, 3)
    pages = [in_pages(t, table, 4) for t in (k, v)]
    used = lengths if isinstance(lengths, int) else torch.tensor(lengths, dtype=torch.int32)
    asked = {"cache_seqlens": used, "causal": True}
    dense = flash_attn_with_kvcache(q, k, v, new_k, new_v, **asked)
    torch.testing.assert_close(
        flash_attn_with_kvcache(q, *pages, new_k, new_v, block_table=table, **asked), dense
    )
    for tensor, stored in zip((k, v), pages, strict=True):
        assert torch.equal(in_pages(tensor, table, 4), stored)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_forward_pass_is_deterministic_either_way(deterministic: bool) -> None:
    q, k, v = tensors(5, 7)
    given = flash_attn_func(q, k, v, deterministic=deterministic)
    assert torch.equal(given, flash_attn_func(q, k, v))


def gradients(function: Function, leaves: list[Tensor], **options: Any) -> tuple[Tensor, ...]:
    """The gradients of out and softmax_lse, each with random weights."""
    out, lse, *_ = function(*leaves, return_attn_probs=True, **options)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(t.shape, generator=generator) for t in (out, lse)]
    return torch.autograd.grad((out, lse), leaves, weights)


def visible_gradients(leaves: list[Tensor], causal: bool) -> tuple[Tensor, ...]:
    seq_q, seq_k = leaves[0].shape[1], leaves[1].shape[1]
    rows = torch.arange(seq_q)[:, None] + seq_k - seq_q
    seen = torch.arange(seq_k) <= rows if causal else None
    return gradients(lambda q, k, v, return_attn_probs: expected(q, k, v, seen), leaves)


@pytest.mark.parametrize("d", [16, 12], ids=["d 16", "d 12, padded"])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_torch(causal: bool, d: int) -> None:
    leaves = [t.requires_grad_() for t in tensors(5, 7, d)]
    wanted = visible_gradients(leaves, causal)
    q, k, v = leaves
    kv = torch.stack((k, v), 2).detach().requires_grad_()
    in_kv = gradients(flash_attn.flash_attn_kvpacked_func, [q, kv], causal=causal)
    assert torch.allclose(in_kv[1], torch.stack(wanted[1:], 2), atol=1e-5)
    found = gradients(flash_attn_func, leaves, causal=causal)
    for given, exact in zip((*found, in_kv[0]), (*wanted, wanted[0]), strict=True):
        assert torch.allclose(given, exact, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_one_tensor_are_one_tensor(causal: bool) -> None:
    q, k, v = (t.requires_grad_() for t in generate_qkv(2, 6, 4, 16, torch.float32))
    wanted = torch.stack(visible_gradients([q, k, v], causal), 2)
    qkv = torch.stack((q, k, v), 2).detach().requires_grad_()
    (given,) = gradients(flash_attn.flash_attn_qkvpacked_func, [qkv], causal=causal)
    assert torch.allclose(given, wanted, atol=1e-5)


def test_gradients_of_packed_sequences_are_those_of_each() -> None:
    q, k, v = (t[0] for t in generate_qkv(1, 9, 4, 16, torch.float32))
    bounds, lengths = cu_seqlens((2, 7)), (2, 7)
    of_each = []
    for sequence in zip(*(t.split(lengths) for t in (q, k, v)), strict=True):
        leaves = [t[None].detach().requires_grad_() for t in sequence]
        out, _ = expected(*leaves)
        of_each.append(torch.autograd.grad(out.square().sum(), leaves))
    wanted = [torch.cat(parts, 1)[0] for parts in zip(*of_each, strict=True)]
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    out = flash_attn_varlen_func(*leaves, bounds, bounds, 7, 7)
    found = torch.autograd.grad(out.square().sum(), leaves)
    kv = torch.stack((k, v), 1).requires_grad_()
    of_kv: Function = flash_attn.flash_attn_varlen_kvpacked_func
    out = of_kv(q, kv, bounds, bounds, 7, 7)
    (dkv,) = torch.autograd.grad(out.square().sum(), kv)
    qkv = torch.stack((q, k, v), 1).requires_grad_()
    of_qkv: Function = flash_attn.flash_attn_varlen_qkvpacked_func
    out = of_qkv(qkv, bounds, 7)
    (dqkv,) = torch.autograd.grad(out.square().sum(), qkv)
    for given, exact in zip(
        (*found, dkv, dqkv),
        (*wanted, torch.stack(wanted[1:], 1), torch.stack(wanted, 1)),
        strict=True,
    ):
        assert torch.allclose(given, exact, atol=1e-5)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_backward_pass_is_told_to_be_deterministic(
    monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    asked: list[bool] = []

    def record(call: BackwardCall, config: Any = None) -> Gradients:
        asked.append(call.deterministic)
        return compute_gradients(call, config)

    monkeypatch.setattr(autograd, "compute_gradients", record)
    q, k, v = (t.requires_grad_() for t in generate_qkv(1, 6, 4, 16, torch.float32))
    bounds = cu_seqlens((2, 4))
    one = torch.stack((q, k, v), 2)
    option: dict[str, Any] = {"deterministic": deterministic}
    for out in (
        flash_attn_func(q, k, v, **option),
        flash_attn.flash_attn_kvpacked_func(q, one[:, :, 1:], **option),
        flash_attn.flash_attn_qkvpacked_func(one, **option),
        flash_attn_varlen_func(q[0], k[0], v[0], bounds, bounds, 4, 4, **option),
        flash_attn.flash_attn_varlen_kvpacked_func(
            q[0], one[0, :, 1:], bounds, bounds, 4, 4, **option
        ),
        flash_attn.flash_attn_varlen_qkvpacked_func(one[0], bounds, 4, **option),
        flash_attn_3.flash_attn_func(q, k, v, **option),
        flash_attn_3.flash_attn_qkvpacked_func(one, **option),
        flash_attn_3.flash_attn_varlen_func(q[0], k[0], v[0], bounds, bounds, 4, 4, **option),
    ):
        torch.autograd.grad(out.sum(), q)  # type: ignore[union-attr]
    assert asked == [deterministic] * 9
