# SPDX-License-Identifier: Apache-2.0
"""What functions of other packages refuse is told with the names that they give their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flash_attention import UnsupportedError, attention
from flash_attention.compat import flash_attn, flash_attn_3
from flash_attention.compat.bert_padding import (
    pad_input,
    unpad_input,
    unpad_input_for_concatenated_sequences,
)
from flash_attention.compat.sdpa import scaled_dot_product_attention

Q, K = torch.zeros(2, 3, 4, 16), torch.zeros(2, 8, 2, 16)
STATES = torch.zeros(3, 5, 2)
MASK = torch.ones(3, 5, dtype=torch.int64)


def test_the_cache_is_called_k_cache() -> None:
    q, k_cache = (torch.zeros(3, rows, 2, 64, dtype=torch.bfloat16) for rows in (1, 8))
    v_cache = k_cache.clone()
    for given, message in (
        ((q.float(), k_cache, v_cache), "k_cache has dtype torch.bfloat16, q has dtype"),
        ((q[..., :32], k_cache, v_cache), "q and k_cache must agree in d_head"),
        ((q.to("meta"), k_cache, v_cache), "k_cache has device cpu, q has device meta"),
        ((q, k_cache.half(), v_cache.half()), "k_cache has dtype torch.float16, q has dtype"),
        ((q[:1], k_cache, v_cache), "the cache is described for 3 sequences; q has 1"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            flash_attn.flash_attn_with_kvcache(*given)


@pytest.mark.parametrize("function", [flash_attn.flash_attn_func, flash_attn_3.flash_attn_func])
@pytest.mark.parametrize("k", [K[0, 0, 0], K[0, 0], K[0]], ids="123")
def test_keys_have_four_dimensions(k: torch.Tensor, function: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError, match=rf"^k has {k.ndim} dimensions, .*allowed are four"):
        function(Q, k, K)


def test_messages_have_the_names_and_the_shapes_of_the_caller() -> None:
    q, k, v = torch.zeros(3, 2, 2, 6, 16)
    refused: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((q, None, v), {}, r"key is a NoneType; .* \(batch, heads, seq, d\)"),
        (([1], k, v), {}, "query is a list; pass a torch.Tensor"),
        ((q, k.half(), v), {}, "key has dtype torch.float16, query torch.float32"),
        ((q.to("meta"), k, v), {}, "key has device cpu, query meta; they must agree"),
        ((q[..., :8], k, v), {}, "query and key must agree in the last dimension"),
        ((q[:1], k, v), {}, "all three must agree in batch"),
        ((q, k, v[:, :, 1:]), {}, "key and value must agree in all but the last"),
        ((q, k, v), {"is_causal": "yes"}, "is_causal is 'yes'; pass True or False"),
        ((q, k, v), {"scale": -1}, "scale is -1; allowed are positive numbers"),
    ]
    for given, options, message in refused:
        with pytest.raises(UnsupportedError, match=message):
            scaled_dot_product_attention(*given, **options)
    with pytest.raises(UnsupportedError) as caught:
        scaled_dot_product_attention(q[:1], k, v)
    assert all(str(tuple(shape)) in str(caught.value) for shape in (q[:1].shape, k.shape))


@pytest.mark.parametrize(
    ("k", "message"),
    [
        (None, "k is a NoneType; pass a torch.Tensor"),
        (torch.tensor(1.0), "k has no dimensions; pass a torch.Tensor"),
        (torch.ones(4), r"k has 1 dimensions, shape \(4\)"),
        (torch.nested.nested_tensor([torch.ones(3, 4, 16)]), "k is a nested tensor"),
    ],
    ids=["none", "number", "vector", "nested"],
)
def test_keys_that_are_no_tensor_of_keys_are_refused(k: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_3.flash_attn_func(Q, k, K)


@pytest.mark.parametrize("strict", ["0", "sm_90"])
def test_caches_of_bytes_are_told_to_be_viewed_as_numbers(
    strict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_STRICT", strict)
    q = Q.bfloat16()
    k = K.to(torch.float8_e4m3fn)
    stored = k.view(torch.uint8)
    factor = torch.ones(1)
    advice = r" is torch\.uint8; .* pass {}\.view\(torch\.float8_e4m3fn\), which copies nothing"
    with pytest.raises(UnsupportedError, match="^k" + advice.format("k")):
        attention(q, stored, stored, k_descale=factor, v_descale=factor)
    for function in (flash_attn.flash_attn_with_kvcache, flash_attn_3.flash_attn_with_kvcache):
        with pytest.raises(UnsupportedError, match="^k_cache" + advice.format("k_cache")):
            function(q, stored, stored, cache_seqlens=1)
    monkeypatch.setenv("FLASH_ATTENTION_STRICT", "0")
    viewed = stored.view(torch.float8_e4m3fn)
    out = attention(q, viewed, viewed, k_descale=factor, v_descale=factor)
    assert torch.equal(out, attention(q, k, k, k_descale=factor, v_descale=factor))


@pytest.mark.parametrize("starts", [3, [0, 1], torch.tensor(3, dtype=torch.int32)], ids=str)
def test_starts_of_queries_that_are_no_vector_are_refused(starts: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"cu_seqlens_q .* pass a torch.Tensor of shape"):
        flash_attn_3.flash_attn_with_kvcache(
            Q[0], K, K, cu_seqlens_q=starts, max_seqlen_q=1, cache_seqlens=1
        )


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (unpad_input, (STATES, MASK[:1]), r"attention_mask has shape \(1, 5\), hidden_states"),
        (unpad_input, (STATES, None), "attention_mask is a NoneType"),
        (unpad_input, ("x", MASK), "hidden_states is a str; pass a torch.Tensor"),
        (unpad_input, (STATES, MASK, MASK.mT), r"unused_mask has shape \(5, 3\)"),
        (
            unpad_input_for_concatenated_sequences,
            (STATES, MASK[0]),
            r"attention_mask_in_length has shape \(5,\)",
        ),
        (pad_input, (STATES[0], torch.arange(4), 1, 5), r"indices has shape \(4,\), hidden"),
        (pad_input, (STATES[0], torch.arange(5), -1, 5), "batch is -1; pass the size"),
        (pad_input, (STATES[0], torch.arange(5), 1, "5"), "seqlen is '5'; pass the size"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_masks_and_indices_that_do_not_fit_are_refused(
    function: Callable[..., Any], given: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        function(*given)
