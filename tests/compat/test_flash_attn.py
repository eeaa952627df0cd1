# SPDX-License-Identifier: Apache-2.0
"""What flash-attn has and this package lacks is refused, with what to do instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention.compat.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from flash_attention.errors import UnsupportedError
from flash_attention.testing import cu_seqlens, generate_qkv

Q, K, V = generate_qkv(2, 6, 2, 16, torch.float32)
QKV = torch.stack((Q, K, V), dim=2)
BOUNDS = cu_seqlens((2, 4))
PACKED = (Q[0], K[0], V[0], BOUNDS, BOUNDS, 4, 4)
SLOPES, TABLE = torch.ones(2), torch.zeros(2, 1, dtype=torch.int32)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"dropout_p": 0.1}, r"dropout_p is 0\.1.*pass 0\.0"),
        ({"alibi_slopes": SLOPES}, "alibi_slopes is given.*pass None"),
    ],
    ids=["dropout", "alibi"],
)
def test_dropout_and_biases_are_refused_by_every_function(
    option: dict[str, Any], message: str
) -> None:
    for function, args in (
        (flash_attn_func, (Q, K, V)),
        (flash_attn_kvpacked_func, (Q, QKV[:, :, 1:])),
        (flash_attn_qkvpacked_func, (QKV,)),
        (flash_attn_varlen_func, PACKED),
        (flash_attn_varlen_qkvpacked_func, (QKV[0], BOUNDS, 4)),
    ):
        with pytest.raises(UnsupportedError, match=message):
            function(*args, **option)


def test_pages_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"block_table is given.*leave block_table out"):
        flash_attn_varlen_func(*PACKED, block_table=TABLE)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"rotary_cos": SLOPES}, "rotate q and k before the call"),
        ({"rotary_sin": SLOPES}, "rotate q and k before the call"),
        ({"block_table": TABLE}, "block_table is given without seqused_k"),
        ({"cache_batch_idx": TABLE[0]}, r"pass k_cache\[cache_batch_idx\]"),
        ({"cache_leftpad": TABLE[0]}, "flash_attn_varlen_func"),
        ({"alibi_slopes": SLOPES}, "alibi_slopes is given"),
        ({"num_splits": 4}, "num_splits is 4.*pass 0, or call attention with split_keys"),
        ({"k": K}, "v, cache_seqlens is missing"),
        ({"k": K, "v": V}, "cache_seqlens is missing"),
    ],
    ids=["cos", "sin", "pages", "batch_idx", "leftpad", "alibi", "splits", "k", "kv"],
)
def test_caches_are_plain_ones(option: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_with_kvcache(Q, K, V, **option)


@pytest.mark.parametrize("splits", [0, 1])
def test_unsplit_keys_are_what_there_is(splits: int) -> None:
    torch.testing.assert_close(
        flash_attn_with_kvcache(Q, K, V, num_splits=splits), flash_attn_func(Q, K, V)
    )


def test_packed_tensors_have_three_or_two_matrices() -> None:
    with pytest.raises(UnsupportedError, match=r"qkv has shape .*\(batch, seq, 3, heads, d\)"):
        flash_attn_qkvpacked_func(QKV[:, :, :2])
    with pytest.raises(UnsupportedError, match=r"kv has shape .*\(batch, seq, 2, heads, d\)"):
        flash_attn_kvpacked_func(Q, QKV)
    with pytest.raises(UnsupportedError, match=r"qkv has shape .*\(total, 3, heads, d\)"):
        flash_attn_varlen_qkvpacked_func(QKV, BOUNDS, 4)


def test_a_gradient_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="requires grad"):
        flash_attn_func(Q.clone().requires_grad_(), K, V)
