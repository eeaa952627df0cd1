# SPDX-License-Identifier: Apache-2.0
"""The functions of the flash-attn package (version 2) with its names, order and defaults.

Dense tensors are (batch, seq, heads, d), packed ones (total, heads, d). Masks are aligned to the
last key, windows include both ends, -1 is no limit. As in flash-attn a last dimension that is not
contiguous is copied, and head dimensions that are no multiple of 8 are padded (a copy, too).
`deterministic` changes nothing: the forward pass always is.

Beyond flash-attn, v may have another head dimension than q and k, and pages 16 keys. Short of it
there is no backward pass, and what has no kernel here raises UnsupportedError instead of being
ignored: dropout, ALiBi, rotary embeddings, more than one split by number. softmax_lse of a query
that sees no key is -inf, where flash-attn stores +inf. docs/flash_attn_semantics.md goes through it
parameter by parameter.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from flash_attention.attention import attention
from flash_attention.call.call import Call, Keywords, Window
from flash_attention.call.checks import views_of
from flash_attention.compat.kv_cache import Cache
from flash_attention.errors import UnsupportedError
from flash_attention.families.sm90.forward.short_queries import PAGE_BLOCK_KEYS

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

Result = Tensor | tuple[Tensor, Tensor, None]
"""The output, or with `return_attn_probs` (out, softmax_lse, None): no probabilities are kept."""

HEAD_DIM_STEP = 8
Packed = TypeVar("Packed", bound=Callable[..., Result])


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """Attention of (batch, seq, heads, d) tensors; softmax_lse is (batch, heads, seq_q)."""
    _refuse_dropout_and_alibi(dropout_p, alibi_slopes)
    options = options_of(softmax_scale, causal, window_size, softcap)
    out, lse = attend(q, k, v, options, return_attn_probs)
    return out if lse is None else (out, lse, None)


def _parameters_of(
    function: Callable[..., Result], first: int, last: int | None = None
) -> Callable[[Packed], Packed]:
    """Let `help` and `inspect` show the parameters of `function` from number `first` on, up to
    `last`, which a function of packed tensors passes on."""

    def shown(packed: Packed) -> Packed:
        own = [
            p for p in signature(packed).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        rest = list(signature(function).parameters.values())[first:last]
        vars(packed)["__signature__"] = signature(function).replace(parameters=[*own, *rest])
        return packed

    return shown


@_parameters_of(flash_attn_func, 3)
def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **named: Any) -> Result:
    """`flash_attn_func` with k and v as one tensor, (batch, seq, 2, heads_k, d)."""
    k, v = unpacked("kv", kv, 2, ndim=5)
    return flash_attn_func(q, k, v, *options, **named)


@_parameters_of(flash_attn_func, 3)
def flash_attn_qkvpacked_func(qkv: Tensor, *options: Any, **named: Any) -> Result:
    """`flash_attn_func` with q, k and v as one tensor, (batch, seq, 3, heads, d)."""
    q, k, v = unpacked("qkv", qkv, 3, ndim=5)
    return flash_attn_func(q, k, v, *options, **named)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Result:
    """Attention of packed (total, heads, d) tensors; softmax_lse is (heads, total_q).

    With `block_table`, int32 (batch, n), k and v are (pages, page_size, heads_k, d), and the table
    names the pages of each entry; cu_seqlens_k says how many keys of them count. A `max_seqlen`
    that is a tensor is read, which waits for its device.
    """
    _refuse_dropout_and_alibi(dropout_p, alibi_slopes)
    options = options_of(softmax_scale, causal, window_size, softcap)
    options["cu_seqlens_q"], options["max_seqlen_q"] = cu_seqlens_q, whole(max_seqlen_q)
    if block_table is None:
        options["cu_seqlens_k"], options["max_seqlen_k"] = cu_seqlens_k, whole(max_seqlen_k)
    else:
        longest = whole(max_seqlen_k)
        if longest is not None:  # of a table that names more pages
            block_table = block_table[:, : -(-longest // max(1, k.shape[1]))]
        options["block_table"], options["seqused_k"] = block_table, cu_seqlens_k.diff()
    out, lse = attend(q, k, v, options, return_attn_probs)
    return out if lse is None else (out, lse, None)


@_parameters_of(flash_attn_varlen_func, 3, -1)  # k and v of one tensor are in no pages
def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **named: Any) -> Result:
    """`flash_attn_varlen_func` with k and v as one tensor, (total_k, 2, heads_k, d)."""
    k, v = unpacked("kv", kv, 2, ndim=4)
    return flash_attn_varlen_func(q, k, v, *options, **named)


@_parameters_of(flash_attn_varlen_func, 7, -1)
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *options: Any, **named: Any
) -> Result:
    """`flash_attn_varlen_func` with q, k and v as one tensor, (total, 3, heads, d)."""
    q, k, v = unpacked("qkv", qkv, 3, ndim=4)
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(q, k, v, *lengths, *options, **named)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention to the first `cache_seqlens` keys of a cache, (batch, seq_cache, heads_k, d).

    With `block_table`, int32 (batch, n), the cache is (pages, page_size, heads_k, d), and the table
    names the pages of each entry. With `cache_batch_idx`, int32 (batch,), entry i of q belongs to
    that entry of the cache, and with `cache_leftpad`, int32 (batch,), its keys start at that row.
    k and v, (batch, seq_new, heads_k, d), are first stored in the cache behind the keys in use.

    A sequence whose new keys do not all fit into the cache, or go to pages that are not there, is
    refused where the host knows it: on the CPU, and where cache_seqlens is an int. On a GPU nothing
    of it is stored, and it sees no key: its output is 0 and its softmax_lse -inf. The other
    sequences are not concerned.

    `rotary_interleaved` says how rotary_cos and rotary_sin are laid out, and neither is supported.
    `num_splits` is 0, or 1: the keys are not split. Returns out, or (out, softmax_lse) with
    `return_softmax_lse`.
    """
    _refuse_dropout_and_alibi(0.0, alibi_slopes)
    refuse_rotary(rotary_cos, rotary_sin)
    options = options_of(softmax_scale, causal, window_size, softcap)
    cache = Cache.of(k_cache, v_cache, block_table, cache_batch_idx, cache_leftpad)
    options["split_keys"] = split_keys(num_splits, cache.max_keys)
    lengths = cache.lengths(cache_seqlens, q.shape[0], k)
    if k is not None or v is not None:
        lengths = cache.append(k, v, lengths)
    out, lse = attend(q, *cache.described(options, lengths), options, return_softmax_lse)
    return out if lse is None else (out, lse)


def options_of(
    softmax_scale: float | None, causal: bool, window_size: Window, softcap: float
) -> Keywords:
    """What is asked of a call, as `attention` spells it."""
    left, right = window_size
    return {
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window": (left, right),
        "softcap": softcap,
    }


def attend(
    q: Tensor, k: Tensor, v: Tensor, options: Keywords, return_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """Attention of tensors laid out in any way; the log-sum-exp if asked for."""
    if q.is_nested or k.is_nested or v.is_nested:
        views_of(Call(q, k, v))  # raises: they have no shape to go on with
    d_v, lse = v.shape[-1], None
    if options["softmax_scale"] is None:
        options["softmax_scale"] = q.shape[-1] ** -0.5  # of the head dimension before padding
    q, k, v = _laid_out(q), _laid_out(k), _laid_out(v)
    if return_lse:
        out, lse = attention(q, k, v, **options, return_lse=True)
    else:
        out = attention(q, k, v, **options)
    return (out if out.shape[-1] == d_v else out[..., :d_v]), lse


def _laid_out(tensor: Tensor) -> Tensor:
    """The tensor with a contiguous last dimension that is a multiple of 8."""
    if missing := -tensor.shape[-1] % HEAD_DIM_STEP:
        return F.pad(tensor, (0, missing))
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def unpacked(name: str, tensor: Tensor, count: int, ndim: int) -> tuple[Tensor, ...]:
    """The matrices of a tensor that holds `count` of them before the heads."""
    if tensor.ndim != ndim or tensor.shape[-3] != count:
        dims = f"({'batch, seq' if ndim == 5 else 'total'}, {count}, heads, d)"
        raise UnsupportedError(f"{name} has shape {tuple(tensor.shape)}; allowed is {dims}")
    return tensor.unbind(-3)


def whole(length: int | None) -> int | None:
    """A length that may be a tensor; that is read, which waits for its device."""
    return length if length is None or isinstance(length, int) else operator.index(length)


def _refuse_dropout_and_alibi(dropout_p: float, alibi_slopes: Tensor | None) -> None:
    if dropout_p:
        raise UnsupportedError(
            f"dropout_p is {dropout_p}, and there is no dropout here; pass 0.0, as in evaluation"
        )
    if alibi_slopes is not None:
        raise UnsupportedError(
            "alibi_slopes is given, and biases of the scores are not supported here; pass None, or"
            " call torch's scaled_dot_product_attention with the bias as attn_mask"
        )


def refuse_rotary(rotary_cos: Tensor | None, rotary_sin: Tensor | None) -> None:
    """Rotary embeddings are for the caller to apply."""
    if rotary_cos is not None or rotary_sin is not None:
        raise UnsupportedError(
            "rotary_cos or rotary_sin is given, and rotary embeddings are not applied here; rotate"
            " q and k before the call and leave both out"
        )


def split_keys(num_splits: int, keys: int) -> int | None:
    """How many keys a chunk has, so that there are as many chunks as asked for."""
    if num_splits not in (0, 1):
        raise UnsupportedError(
            f"num_splits is {num_splits}, and how the keys of a query are split is not to be chosen"
            " here; pass 0 for as many splits as fill the GPU, 1 for none, or call attention with"
            " split_keys, how many keys a chunk has"
        )
    return None if num_splits == 0 else -(-max(1, keys) // PAGE_BLOCK_KEYS) * PAGE_BLOCK_KEYS
