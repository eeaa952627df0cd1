# SPDX-License-Identifier: Apache-2.0
"""The functions of FlashAttention-3's flash_attn_interface: its parameters, order and defaults.

Parameters that `flash_attention.compat.flash_attn` has too mean the same. `num_splits` 1 does not
split the keys, and 0 splits them if that fills the GPU. `pack_gqa` has no effect, because this
package decides how heads share a tile. Parameters without a kernel raise UnsupportedError unless
they have their default value; the message says what to do instead. docs/flash_attn_semantics.md
describes every parameter.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from flash_attention.call.call import Keywords, Window
from flash_attention.call.checks import check_dense
from flash_attention.call.results import E4M3
from flash_attention.compat.flash_attn import (
    attend,
    options_of,
    refuse_rotary,
    split_keys,
    unpacked,
    whole,
)
from flash_attention.compat.kv_cache import Cache, check_inference
from flash_attention.errors import UnsupportedError

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]

Result = Tensor | tuple[Tensor, Tensor]
"""The output. With `return_attn_probs`, (out, softmax_lse)."""

INSTEAD = {
    "qv": "there is no second product of scores here; pass torch.cat((q, qv), -1) for q and"
    " torch.cat((k, v), -1) for k, which give the same scores",
    "attention_chunk": "chunks that see only themselves are not masked here; pass each chunk as a"
    " sequence of its own, with cu_seqlens",
    "seqused_q": "all rows of a packed q count here; pass cu_seqlens_q and q without the others",
    "cu_seqlens_k_new": "new keys are not packed here; pass k, v as (batch, seq_new, heads_k, d)",
    "rotary_seqlens": "rotary embeddings are not applied here; rotate q and k before the call",
    "scheduler_metadata": "tiles are scheduled by the kernels here; leave it out",
    "sm_margin": "kernels take the whole GPU here; pass 0",
}
"""Why a parameter is not supported, and what to do instead."""


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """Compute attention of (batch, seq, heads, d) tensors.

    Returns out, or with `return_attn_probs` (out, softmax_lse), where softmax_lse is (batch, heads,
    seq_q).
    """
    _refuse(
        qv=qv,
        attention_chunk=attention_chunk,
        sm_margin=sm_margin,
    )
    options = options_of(softmax_scale, causal, window_size, softcap)
    options |= _descales(q, q_descale, k_descale, v_descale)
    options["split_keys"] = split_keys(num_splits, k.shape[1])
    out, lse = attend(q, k, v, options, return_attn_probs, deterministic)
    return out if lse is None else (out, lse)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """Compute `flash_attn_func` with q, k and v in one tensor: (batch, seq, 3, heads, d), or with
    `num_heads_q` (batch, seq, heads_q + 2 heads_k, d)."""
    check_dense("qkv", qkv)
    if num_heads_q is None or qkv.ndim == 5:
        q, k, v = unpacked("qkv", qkv, 3, ndim=5)
    else:
        heads_k = (qkv.shape[2] - num_heads_q) // 2 if qkv.ndim == 4 else 0
        if num_heads_q < 1 or heads_k < 1 or num_heads_q + 2 * heads_k != qkv.shape[2]:
            raise UnsupportedError(
                f"qkv has shape {tuple(qkv.shape)}, and num_heads_q is {num_heads_q}; allowed is"
                " (batch, seq, num_heads_q + 2 heads_k, d)"
            )
        q, k, v = qkv.split([num_heads_q, heads_k, heads_k], dim=2)
    return flash_attn_func(
        *(q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size),
        attention_chunk=attention_chunk,
        softcap=softcap,
        deterministic=deterministic,
        sm_margin=sm_margin,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """Compute attention of packed sequences, (total, heads, d).

    `seqused_k`, int32 (batch,), is the number of keys of each sequence that are used. Returns out,
    or with `return_attn_probs` (out, softmax_lse), where softmax_lse is (heads, total_q).
    """
    _refuse(
        seqused_q=seqused_q,
        qv=qv,
        attention_chunk=attention_chunk,
        sm_margin=sm_margin,
    )
    options = options_of(softmax_scale, causal, window_size, softcap)
    options |= _descales(q, q_descale, k_descale, v_descale)
    check_dense("k", k)
    options["split_keys"] = split_keys(num_splits, k.shape[0])
    options["cu_seqlens_q"], options["max_seqlen_q"] = cu_seqlens_q, whole(max_seqlen_q)
    options["cu_seqlens_k"], options["max_seqlen_k"] = cu_seqlens_k, whole(max_seqlen_k)
    options["seqused_k"] = seqused_k
    out, lse = attend(q, k, v, options, return_attn_probs, deterministic)
    return out if lse is None else (out, lse)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None, None]:
    """Compute `compat.flash_attn.flash_attn_with_kvcache`; its block_table is `page_table` here.

    With `cu_seqlens_q` and `max_seqlen_q` q is packed, (total, heads, d). Returns out, or with
    `return_softmax_lse` (out, softmax_lse, None, None), because no partial results are kept.
    """
    refuse_rotary(rotary_cos, rotary_sin)
    _refuse(
        qv=qv,
        attention_chunk=attention_chunk,
        cu_seqlens_k_new=cu_seqlens_k_new,
        rotary_seqlens=rotary_seqlens,
        scheduler_metadata=scheduler_metadata,
        sm_margin=sm_margin,
    )
    check_inference(q, k_cache, v_cache)
    options = options_of(softmax_scale, causal, window_size, softcap)
    options |= _descales(q, q_descale, k_descale, v_descale)
    cache = Cache.of(k_cache, v_cache, page_table, cache_batch_idx, cache_leftpad)
    options["split_keys"] = split_keys(num_splits, cache.max_keys)
    batch = q.shape[0]
    if cu_seqlens_q is not None:
        options["cu_seqlens_q"], options["max_seqlen_q"] = cu_seqlens_q, whole(max_seqlen_q)
        batch = len(cu_seqlens_q) - 1
    lengths = cache.lengths(cache_seqlens, batch, k)
    if k is not None or v is not None:
        lengths = cache.append(q, k, v, lengths, options)
    out, lse = attend(q, *cache.described(options, lengths), options, return_softmax_lse)
    return out if lse is None else (out, lse, None, None)


def flash_attn_combine(
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Tensor | None = None,
    out_dtype: Any = None,
) -> NoReturn:
    """Raise UnsupportedError: the functions here return results that are already combined."""
    raise UnsupportedError(
        "flash_attn_combine is not supported here; call attention with return_lse and weight the"
        " outputs of parts with softmax(torch.stack(lses), 0)"
    )


def get_scheduler_metadata(*sizes: Any, **options: Any) -> NoReturn:
    """Raise UnsupportedError: the kernels schedule their tiles themselves."""
    raise UnsupportedError(
        "get_scheduler_metadata is not supported here, since tiles are scheduled by the kernels;"
        " leave scheduler_metadata out of flash_attn_with_kvcache"
    )


def _descales(q: Tensor, *factors: Tensor | None) -> Keywords:
    """Return the descale factors of a call. One of an fp8 tensor that is not given is 1."""
    if getattr(q, "dtype", None) == E4M3:
        factors = tuple(q.new_ones(1, dtype=torch.float32) if f is None else f for f in factors)
    q_descale, k_descale, v_descale = factors
    return {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}


def _refuse(**given: Tensor | int | None) -> None:
    for name, value in given.items():
        if value is not None and not (isinstance(value, int) and value == 0):
            raise UnsupportedError(f"{name} is given, and {INSTEAD[name]}")
