# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's functions with keys and values of 8 bits and queries of 16 or 32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import UnsupportedError
from flash_attention.call.call import Keywords
from flash_attention.compat.flash_attn_3 import (
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from flash_attention.compat.kv_cache import Cache
from flash_attention.launch.cache_update import update_cache
from flash_attention.reference.judge import cu_seqlens

E4M3 = torch.float8_e4m3fn
BATCH, KEYS, HEADS_K, D = 2, 24, 2, 16
PAGE = 8


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


Q = drawn(BATCH, 3, 4, D)
K, V = (drawn(BATCH, KEYS, HEADS_K, D + extra).to(E4M3) for extra in (0, 16))
K_DESCALE, V_DESCALE = drawn(BATCH, HEADS_K).abs() + 0.5, drawn(BATCH, HEADS_K + 1)[:, 1:].abs()
FACTORS: dict[str, Any] = {"k_descale": K_DESCALE, "v_descale": V_DESCALE}


def multiplied(tensor: Tensor, factor: Tensor) -> Tensor:
    return tensor.float() * factor[:, None, :, None]


WIDE_K, WIDE_V = multiplied(K, K_DESCALE), multiplied(V, V_DESCALE)


def test_keys_and_values_are_multiplied_by_their_factors() -> None:
    out = flash_attn_func(Q, K, V, **FACTORS)
    torch.testing.assert_close(out, flash_attn_func(Q, WIDE_K, WIDE_V))
    of_ones = flash_attn_func(Q, K, V)
    torch.testing.assert_close(of_ones, flash_attn_func(Q, K.float(), V.float()))


def test_packed_sequences_have_their_own_factors() -> None:
    starts_q, starts_k = cu_seqlens((3, 3)), cu_seqlens((KEYS, KEYS))
    used = torch.tensor([3, 1], dtype=torch.int32)

    def varlen(k: Tensor, v: Tensor, **factors: Any) -> Any:
        packed = (Q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))
        return flash_attn_varlen_func(
            *packed, starts_q, starts_k, 3, KEYS, seqused_q=used, causal=True, **factors
        )

    torch.testing.assert_close(varlen(K, V, **FACTORS), varlen(WIDE_K, WIDE_V))


@pytest.mark.parametrize("paged", [False, True])
def test_a_cache_stores_new_rows_of_8_bits(paged: bool) -> None:
    lengths = torch.tensor([5, 20], dtype=torch.int32)
    new_k, new_v = drawn(BATCH, 3, HEADS_K, D).to(E4M3), drawn(BATCH, 3, HEADS_K, D + 16).to(E4M3)
    more: dict[str, Any] = {}
    k, v = K.clone(), V.clone()
    wide_k, wide_v = WIDE_K.clone(), WIDE_V.clone()
    for entry, length in enumerate(lengths.tolist()):
        at = slice(length, length + 3)
        wide_k[entry, at] = multiplied(new_k, K_DESCALE)[entry]
        wide_v[entry, at] = multiplied(new_v, V_DESCALE)[entry]
    if paged:
        k, v = (t.reshape(-1, PAGE, *t.shape[2:]) for t in (k, v))
        more["page_table"] = torch.arange(len(k), dtype=torch.int32).reshape(BATCH, -1)
    out = flash_attn_with_kvcache(
        Q, k, v, new_k, new_v, cache_seqlens=lengths, causal=True, **FACTORS, **more
    )
    wanted = flash_attn_with_kvcache(Q, wide_k, wide_v, cache_seqlens=lengths + 3, causal=True)
    torch.testing.assert_close(out, wanted)
    assert torch.equal(k.reshape(K.shape)[0, 5:8].float(), new_k[0].float())


def test_rows_of_8_bits_are_not_rotated() -> None:
    angles = torch.zeros(KEYS, 4)
    with pytest.raises(UnsupportedError, match="numbers of 8 bits are not rotated: rotate q and k"):
        flash_attn_with_kvcache(
            *(Q, K, V, K[:, :3], V[:, :3], None, angles, angles), cache_seqlens=0, **FACTORS
        )


def test_an_odd_row_is_refused() -> None:
    k, v = (torch.zeros(1, 4, 1, 15).to(E4M3) for _ in "kv")
    with pytest.raises(UnsupportedError, match=r"k_cache has shape \(1, 4, 1, 15\) and strides"):
        flash_attn_with_kvcache(torch.zeros(1, 1, 1, 15), k, v, cache_seqlens=1)


def test_the_kernel_stores_pairs_as_torch_does() -> None:
    new_k, new_v = (t[:, :3].contiguous() for t in (K.flip(1), V.flip(1)))
    caches = []
    for update in (update_cache, None):
        cache = Cache.of(K.clone(), V.clone(), None, None, None)
        lengths = torch.tensor([2, 21], dtype=torch.int32)
        options: Keywords = {"k_descale": K_DESCALE, "v_descale": V_DESCALE}
        if update is None:
            cache.attended(Q, new_k, new_v, lengths, None, options)
        else:
            update(cache._call(Q, new_k, new_v, lengths, None, options))
        caches.append((cache.k.float(), cache.v.float()))
    assert all(map(torch.equal, *caches))


def test_factors_have_no_gradient() -> None:
    learned: dict[str, Any] = FACTORS | {"v_descale": V_DESCALE.clone().requires_grad_()}
    for function, message in (
        (flash_attn_func, "no gradients of 8-bit tensors and their factors"),
        (flash_attn_with_kvcache, "flash_attn_with_kvcache has no gradient"),
    ):
        out, wanted = function(Q, K, V, **learned), function(Q, K, V, **FACTORS)
        assert isinstance(out, Tensor)
        assert isinstance(wanted, Tensor)
        assert torch.equal(out, wanted)
        assert not wanted.requires_grad
        with pytest.raises(UnsupportedError, match=message):
            out.sum().backward()


def test_tensors_of_8_bits_have_a_result_and_no_gradient() -> None:
    k, v = (t.clone().requires_grad_() for t in (K, V))
    out, lse = flash_attn_func(Q, k, v, **FACTORS, return_attn_probs=True)
    wanted = flash_attn_func(Q, K, V, **FACTORS, return_attn_probs=True)
    assert all(map(torch.equal, (out, lse), wanted))
    for result in (out, lse):
        with pytest.raises(UnsupportedError, match="no gradients of 8-bit tensors"):
            result.sum().backward()
