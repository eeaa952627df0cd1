# SPDX-License-Identifier: Apache-2.0
"""The functions of FlashAttention-3's flash_attn_interface: its parameters, order and defaults.

Parameters that `flash_attention.compat.flash_attn` has too mean the same. `pack_gqa` has no effect,
because this package decides how heads share a tile. Parameters without a kernel raise
UnsupportedError unless they have their default value; the message says what to do instead.
docs/flash_attn_semantics.md describes every parameter.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from flash_attention.call.call import DESCALES, Keywords, Window
from flash_attention.call.checks import check_dense
from flash_attention.call.merge_call import MergeCall
from flash_attention.call.results import E4M3
from flash_attention.compat.flash_attn import (
    NO_WINDOW,
    attend,
    options_of,
    refuse,
    split_keys,
    unpacked,
    whole,
)
from flash_attention.compat.forward_only import of_a_cache
from flash_attention.compat.kv_cache import Cache
from flash_attention.compat.rotary import rotary_of
from flash_attention.compat.values import has_values
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.merge import merged

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
    window_size: Window = NO_WINDOW,
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
    refuse_unserved(
        qv=qv,
        attention_chunk=attention_chunk,
        sm_margin=sm_margin,
    )
    options = options_of(softmax_scale, causal, window_size, softcap)
    options |= descales_of(q, k, q_descale, k_descale, v_descale)
    check_dense("k", k)
    options["split_keys"] = split_keys(num_splits, k.shape[1] if k.ndim > 1 else 0)
    out, lse = attend(q, k, v, options, return_attn_probs, deterministic)
    return out if lse is None else (out, lse)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = NO_WINDOW,
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
        heads = int(num_heads_q) if isinstance(num_heads_q, Integral) else 0
        heads_k = (qkv.shape[2] - heads) // 2 if qkv.ndim == 4 else 0
        if heads < 1 or heads_k < 1 or heads + 2 * heads_k != qkv.shape[2]:
            raise UnsupportedError(
                f"qkv has shape {tuple(qkv.shape)}, and num_heads_q is {quoted(num_heads_q)};"
                " allowed is (batch, seq, num_heads_q + 2 heads_k, d)"
            )
        q, k, v = qkv.split([heads, heads_k, heads_k], dim=2)
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
    window_size: Window = NO_WINDOW,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """Compute attention of packed sequences, (total, heads, d).

    `seqused_q` and `seqused_k`, int32 (batch,), are the numbers of queries and of keys of each
    sequence that are used. The output of the other queries is 0, and their softmax_lse -inf.
    Returns out, or with `return_attn_probs` (out, softmax_lse), where softmax_lse is (heads,
    total_q).
    """
    refuse_unserved(
        qv=qv,
        attention_chunk=attention_chunk,
        sm_margin=sm_margin,
    )
    options = options_of(softmax_scale, causal, window_size, softcap)
    options |= descales_of(q, k, q_descale, k_descale, v_descale)
    check_dense("k", k)
    options["split_keys"] = split_keys(num_splits, k.shape[0])
    options["cu_seqlens_q"], options["max_seqlen_q"] = cu_seqlens_q, whole(max_seqlen_q)
    options["cu_seqlens_k"], options["max_seqlen_k"] = cu_seqlens_k, whole(max_seqlen_k)
    options["seqused_k"] = seqused_k
    if seqused_q is not None:
        leave_out_queries(options, cu_seqlens_q, cu_seqlens_k, seqused_q)
    out, lse = attend(q, k, v, options, return_attn_probs, deterministic)
    return out if lse is None else (out, lse)


@of_a_cache
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
    window_size: Window = NO_WINDOW,
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

    With `cu_seqlens_q` and `max_seqlen_q` q is packed, (total, heads, d), and with
    `cu_seqlens_k_new` k and v are. Returns out, or with `return_softmax_lse` (out, softmax_lse,
    None, None), because no partial results are kept.
    """
    refuse_unserved(
        qv=qv,
        attention_chunk=attention_chunk,
        scheduler_metadata=scheduler_metadata,
        sm_margin=sm_margin,
    )
    check_dense("q", q)
    options = options_of(softmax_scale, causal, window_size, softcap)
    options |= descales_of(q, k_cache, q_descale, k_descale, v_descale)
    cache = Cache.of(k_cache, v_cache, page_table, cache_batch_idx, cache_leftpad, "page_table")
    options["split_keys"] = split_keys(num_splits, cache.max_keys)
    if cu_seqlens_q is not None:
        options["cu_seqlens_q"], options["max_seqlen_q"] = cu_seqlens_q, whole(max_seqlen_q)
    rotary = rotary_of(rotary_cos, rotary_sin, rotary_interleaved, options, rotary_seqlens)
    attended = cache.attended(q, k, v, cache_seqlens, rotary, options, cu_seqlens_k_new)
    out, lse = attend(*attended, options, return_softmax_lse)
    return out if lse is None else (out, lse, None, None)


def flash_attn_combine(
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Combine results of attention over parts of the keys, as `flash_attention.merge` does.

    `out_partial` is float32 (parts, batch, seq, heads, d), `lse_partial` float32 (parts, batch,
    seq, heads). Returns (out, softmax_lse): out has the dtype `out_dtype`, by default float32, and
    is stored in `out` if that is given; softmax_lse is (batch, seq, heads).
    """
    check_dense("out_partial", out_partial)
    check_dense("lse_partial", lse_partial, ("parts", "batch", "seq", "heads"))
    if (out_partial.dtype, lse_partial.dtype) != (torch.float32, torch.float32):
        raise UnsupportedError(
            f"out_partial is {out_partial.dtype} and lse_partial {lse_partial.dtype}; pass"
            " torch.float32, or call flash_attention.merge, which takes outputs in 16 bits"
        )
    if out_partial.ndim != 5 or lse_partial.shape != out_partial.shape[:-1] or not len(out_partial):
        raise UnsupportedError(
            f"out_partial has shape {tuple(out_partial.shape)}, lse_partial"
            f" {tuple(lse_partial.shape)}; they must be (parts, batch, seq, heads, d) and (parts,"
            " batch, seq, heads), with one part or more"
        )
    if lse_partial.device != out_partial.device:
        raise UnsupportedError(
            f"lse_partial is on {lse_partial.device}, out_partial is on {out_partial.device}; move"
            " it with lse_partial.to(out_partial.device)"
        )
    dtype = torch.float32 if out_dtype is None else out_dtype
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UnsupportedError(
            f"out_dtype is {quoted(dtype)}; allowed are torch.float32, torch.float16 and"
            " torch.bfloat16"
        )
    if out is not None:
        check_dense("out", out)
        wanted = (tuple(out_partial.shape[1:]), dtype, out_partial.device)
        if (tuple(out.shape), out.dtype, out.device) != wanted:
            raise UnsupportedError(
                f"out has shape {tuple(out.shape)} and is {out.dtype} on {out.device}; it must be"
                f" {wanted[0]}, {dtype} on {wanted[2]}: pass such a tensor, or leave it out"
            )
    lses = lse_partial.mT
    parts = MergeCall(out_partial[0], lses[0], out_partial[1:], lses[1:])
    result, lse = merged(parts, dtype)
    return (result if out is None else out.copy_(result)), lse.mT


def get_scheduler_metadata(*sizes: Any, **options: Any) -> NoReturn:
    """Raise UnsupportedError: the kernels schedule their tiles themselves."""
    raise UnsupportedError(
        "get_scheduler_metadata is not supported here, since tiles are scheduled by the kernels;"
        " leave scheduler_metadata out of flash_attn_with_kvcache"
    )


def leave_out_queries(options: Keywords, starts_q: Tensor, starts_k: Tensor, used: Tensor) -> None:
    """Make the queries of each packed sequence behind the first `used` ones a sequence of their
    own, without keys."""
    check_dense("cu_seqlens_q", starts_q, ("batch + 1",))
    check_dense("cu_seqlens_k", starts_k, ("batch + 1",))
    check_dense("seqused_q", used, ("batch",))
    lengths = starts_q.diff()
    if (used.shape, used.dtype, used.device) != (lengths.shape, torch.int32, lengths.device):
        raise UnsupportedError(
            f"seqused_q has shape {tuple(used.shape)} and is {used.dtype} on {used.device}; it must"
            f" be ({len(lengths)},), torch.int32 on {lengths.device}, one less than cu_seqlens_q"
        )
    within = used.clamp(min=0).minimum(lengths)
    if has_values(used) and not torch.equal(within, used):
        sequence = int((within != used).int().argmax())
        raise UnsupportedError(
            f"seqused_q[{sequence}] is {int(used[sequence])}; sequence {sequence} of q has"
            f" {int(lengths[sequence])} rows, allowed are 0 to {int(lengths[sequence])}"
        )
    options["cu_seqlens_q"] = _interleaved(starts_q[:-1], starts_q[:-1] + within, starts_q[-1:])
    options["cu_seqlens_k"] = _interleaved(starts_k[:-1], starts_k[1:], starts_k[-1:])
    if (keys := options.get("seqused_k")) is not None:
        options["seqused_k"] = _interleaved(keys, torch.zeros_like(keys), keys[:0])
    for name in DESCALES:
        if isinstance(factor := options.get(name), Tensor) and factor.ndim > 1:
            options |= cast(Keywords, {name: factor.repeat_interleave(2, 0)})


def _interleaved(first: Tensor, second: Tensor, last: Tensor) -> Tensor:
    return torch.cat((torch.stack((first, second), 1).flatten(), last))


def descales_of(q: Tensor, k: Tensor, *factors: Tensor | None) -> Keywords:
    """Return the descale factors of a call. One of an fp8 tensor that is not given is 1."""
    q_descale, k_descale, v_descale = (
        t.new_ones(1, dtype=torch.float32)
        if factor is None and getattr(t, "dtype", None) == E4M3
        else factor
        for t, factor in zip((q, k, k), factors, strict=True)
    )
    return {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}


def refuse_unserved(**given: Tensor | int | None) -> None:
    """Raise UnsupportedError for parameters of INSTEAD that have not their default value."""
    refuse(INSTEAD, given)
