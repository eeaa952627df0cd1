# SPDX-License-Identifier: Apache-2.0
"""The functions of SGLang's fork of FlashAttention-3, which its backend calls, and others import.

    python -m sglang.launch_server --model-path MODEL --attention-backend fa_jit

The backend that this option selects calls them (docs/switch.md). They have the names and parameters
of sgl_kernel.flash_attn. `ver`, `pack_gqa` and `scheduler_metadata` have no effect: there is one
implementation, and kernels schedule their tiles themselves. `num_splits` 1 does not split keys; of
other numbers this package makes as many splits as fill the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from flash_attention.compat.flash_attn import refuse
from flash_attention.compat.flash_attn_3 import flash_attn_with_kvcache as with_new_keys
from flash_attention.compat.serving import Options, Step, compute_step, get_scheduler_metadata
from flash_attention.errors import UnsupportedError

__all__ = ["flash_attn_varlen_func", "flash_attn_with_kvcache", "get_scheduler_metadata"]

CUTE = "functions of cute-dsl are not compiled here; call flash_attention.attention with"
INSTEAD = {
    "qv": "there is no second product of scores here; pass torch.cat((q, qv), -1) for q and"
    " torch.cat((k, v), -1) for k, which give the same scores",
    "only_qv": "there is no second product of scores here; pass qv for q and v for k",
    "seqused_q": "all queries of a sequence are used here; leave it out",
    "attention_chunk": "chunks that see only themselves are not masked here; pass each chunk as a"
    " sequence of its own, with cu_seqlens",
    "sm_margin": "kernels take the whole GPU here; pass 0",
    "score_mod": f"{CUTE} score",
    "mask_mod": f"{CUTE} mask",
    "aux_tensors": f"{CUTE} score or mask",
    "sfq": "blocks of factors are those of 128 keys here; pass q_descale",
    "sfk": "blocks of factors are those of 128 keys here; pass k_descale",
    "sfv": "blocks of factors are those of 128 keys here; pass v_descale",
    "rel_bias": f"{CUTE} score",
    "rel_bias_prep_cache": f"{CUTE} score",
}
"""Why a parameter is not supported, and what to do instead."""

Result = Tensor | tuple[Tensor, Tensor, None, None]
"""The output. With `return_softmax_lse`, (out, softmax_lse, None, None)."""


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
    window_size: Sequence[int] = (-1, -1),
    attention_chunk: int | None = None,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    ver: int = 3,
    out: Tensor | None = None,
    max_seqlen_k: int | None = None,
    **of_cute: Any,
) -> Result:
    """Compute attention of packed queries, (total, heads, d), or dense ones with a KV cache, whose
    pages `page_table` lists. `cu_seqlens_k_new` is read only with new keys."""
    _check(of_cute | {"qv": qv, "attention_chunk": attention_chunk, "sm_margin": sm_margin})
    descales = (q_descale, k_descale, v_descale)
    plain = k is cache_batch_idx is cache_leftpad is rotary_cos is None
    if page_table is None or not isinstance(cache_seqlens, Tensor) or not plain:
        return _with_new_keys(
            *(out, sinks, q, k_cache, v_cache, k, v, None, rotary_cos, rotary_sin, cache_seqlens),
            *(cache_batch_idx, cache_leftpad, page_table, cu_seqlens_q),
            *(None if k is None else cu_seqlens_k_new, max_seqlen_q, rotary_seqlens, *descales),
            *(softmax_scale, causal, tuple(window_size), 0, softcap, rotary_interleaved, None),
            *(num_splits, pack_gqa, 0, return_softmax_lse),
        )
    step = Step(cu_seqlens_q, max_seqlen_q, None, max_seqlen_k, cache_seqlens, page_table)
    options = Options(softmax_scale, causal, window_size, softcap, sinks, None, descales)
    options = options._replace(num_splits=num_splits)
    found, lse = compute_step(q, k_cache, v_cache, step, options, out, return_softmax_lse)
    return found if lse is None else (found, lse, None, None)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Sequence[int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    ver: int = 3,
    out: Tensor | None = None,
    **of_cute: Any,
) -> Result:
    """Compute attention of packed queries with packed keys, or with the pages of `page_table`."""
    refused: dict[str, Any] = {"qv": qv, "seqused_q": seqused_q, "sm_margin": sm_margin}
    _check(of_cute | refused | {"attention_chunk": attention_chunk})
    step = Step(cu_seqlens_q, max_seqlen_q, cu_seqlens_k, max_seqlen_k, seqused_k, page_table)
    descales = (q_descale, k_descale, v_descale)
    options = Options(softmax_scale, causal, window_size, softcap, sinks, None, descales)
    options = options._replace(num_splits=num_splits)
    found, lse = compute_step(q, k, v, step, options, out, return_softmax_lse)
    return found if lse is None else (found, lse, None, None)


def _with_new_keys(into: Tensor | None, sinks: Tensor | None, *given: Any) -> Result:
    if sinks is not None:
        raise UnsupportedError(
            "sinks are given with new keys, or with a cache without pages; store the keys first,"
            " and pass page_table and cache_seqlens"
        )
    found: Any = with_new_keys(*given)
    out, *others = found if isinstance(found, tuple) else (found,)
    out = out if into is None else into.copy_(out)
    return (out, *others) if others else out


def _check(given: dict[str, Any]) -> None:
    if unknown := sorted(given.keys() - INSTEAD.keys()):
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
    refuse(INSTEAD, given)
