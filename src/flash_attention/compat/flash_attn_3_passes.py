# SPDX-License-Identifier: Apache-2.0
"""The forward and the backward pass of FlashAttention-3, which others call.

Transformer Engine and Megatron call `_flash_attn_forward` and `_flash_attn_backward` of
flash_attn_interface, whose parameters these functions have. torch calls the operators
torch.ops.flash_attn_3.fwd and .bwd when "FA3" is activated in its registry of flash attention.
Autograd does not record them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from flash_attention.call.call import Keywords
from flash_attention.call.checks import check_dense
from flash_attention.compat.flash_attn import options_of, split_keys, whole
from flash_attention.compat.flash_attn_3 import (
    INSTEAD,
    descales_of,
    flash_attn_with_kvcache,
    leave_out_queries,
    refuse_unserved,
)
from flash_attention.compat.flash_attn_passes import forward_pass, store_gradients
from flash_attention.errors import UnsupportedError

__all__ = ["flash_attn_backward", "flash_attn_forward"]

Results = tuple[Tensor, Tensor, Tensor, Tensor]
"""The output, softmax_lse, and two empty tensors, because no partial results are kept."""


def flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_new: Tensor | None = None,
    v_new: Tensor | None = None,
    qv: Tensor | None = None,
    out_: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: Tensor | None = None,
    kv_batch_idx: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    seqlens_rotary: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Results:
    """Compute attention of dense or packed tensors, or with a KV cache, which k and v are then.

    The output is stored in `out_` if that is given. softmax_lse is (batch, heads, seq_q), or
    (heads, total_q) of packed queries.
    """
    window = (window_size_left, window_size_right)
    plain = k_new is page_table is kv_batch_idx is leftpad_k is rotary_cos is None
    if cu_seqlens_k is None and not (plain and (seqused_k is None or cu_seqlens_q is None)):
        return _with_cache(
            *(out_, seqused_q, q, k, v, k_new, v_new, qv, rotary_cos, rotary_sin, seqused_k),
            *(kv_batch_idx, leftpad_k, page_table, cu_seqlens_q, cu_seqlens_k_new, max_seqlen_q),
            *(seqlens_rotary, q_descale, k_descale, v_descale, softmax_scale, causal, window),
            *(attention_chunk, softcap, rotary_interleaved, scheduler_metadata, num_splits),
            *(pack_gqa, sm_margin),
        )
    unserved = (qv, attention_chunk, scheduler_metadata, sm_margin)
    refuse_unserved(**dict(zip(INSTEAD, unserved, strict=True)))
    options = options_of(softmax_scale, causal, window, softcap)
    options |= descales_of(q, k, q_descale, k_descale, v_descale)
    check_dense("k", k)
    options["split_keys"] = split_keys(num_splits, k.shape[1 if cu_seqlens_k is None else 0])
    options |= _sizes(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k)
    out, lse, empty, _ = forward_pass(q, k, v, options, out_)
    return out, lse, empty, empty.clone()


def flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    sequed_q: Tensor | None = None,
    sequed_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> Tensor:
    """Store the gradients of `flash_attn_forward` in `dq`, `dk` and `dv`, those that are given.

    `sequed_q` and `sequed_k`, which FlashAttention-3 calls so, are the numbers of queries and keys
    in use. Returns softmax_d, the sum of dout out in each row, like softmax_lse.
    """
    refuse_unserved(sm_margin=sm_margin)
    window = (window_size_left, window_size_right)
    options = options_of(softmax_scale, is_causal, window, softcap)
    options |= _sizes(cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k, max_seqlen_q, max_seqlen_k)
    tensors, into = (dout, q, k, v, out, softmax_lse), (dq, dk, dv)
    return store_gradients(tensors, into, options, deterministic)


def _with_cache(into: Tensor | None, used_q: Tensor | None, q: Tensor, *given: Any) -> Results:
    _refuse_unused(used_q)
    with torch.no_grad():
        with_kvcache: Callable[..., Any] = flash_attn_with_kvcache
        out, lse, *_ = with_kvcache(q, *given, return_softmax_lse=True)
        out = out if into is None else into.copy_(out)
    return out, lse, q.new_empty(0), q.new_empty(0)


def _sizes(
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    used_q: Tensor | None,
    used_k: Tensor | None,
    max_q: int | None,
    max_k: int | None,
) -> Keywords:
    """Convert the lengths of sequences to keywords of `attention`. Dense tensors have the longest
    ones in their shapes."""
    options: Keywords = {} if used_k is None else {"seqused_k": used_k}
    if starts_q is not None:
        options |= {"cu_seqlens_q": starts_q, "max_seqlen_q": whole(max_q)}
    if starts_k is not None:
        options |= {"cu_seqlens_k": starts_k, "max_seqlen_k": whole(max_k)}
    if used_q is not None:
        if starts_q is None or starts_k is None:
            _refuse_unused(used_q)
        else:
            leave_out_queries(options, starts_q, starts_k, used_q)
    return options


def _refuse_unused(used_q: Tensor | None) -> None:
    if used_q is not None:
        raise UnsupportedError(
            "seqused_q is given, and queries or keys are not packed; pass cu_seqlens_q and"
            " cu_seqlens_k too, or leave it out"
        )


FORWARD = (
    "fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new = None, Tensor(v_new!)? v_new = None,"
    " Tensor? q_v = None, Tensor(out!)? out = None, Tensor? cu_seqlens_q = None,"
    " Tensor? cu_seqlens_k = None, Tensor? cu_seqlens_k_new = None, Tensor? seqused_q = None,"
    " Tensor? seqused_k = None, int? max_seqlen_q = None, int? max_seqlen_k = None,"
    " Tensor? page_table = None, Tensor? kv_batch_idx = None, Tensor? leftpad_k = None,"
    " Tensor? rotary_cos = None, Tensor? rotary_sin = None, Tensor? seqlens_rotary = None,"
    " Tensor? q_descale = None, Tensor? k_descale = None, Tensor? v_descale = None,"
    " float? softmax_scale = None, bool is_causal = False, int window_size_left = -1,"
    " int window_size_right = -1, int attention_chunk = 0, float softcap = 0.0,"
    " bool is_rotary_interleaved = False, Tensor? scheduler_metadata = None, int num_splits = 0,"
    " bool? pack_gqa = None, int sm_margin = 0) -> (Tensor(out!), Tensor, Tensor, Tensor)"
)
BACKWARD = (
    "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse,"
    " Tensor(dq!)? dq = None, Tensor(dk!)? dk = None, Tensor(dv!)? dv = None,"
    " Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None, Tensor? seqused_q = None,"
    " Tensor? seqused_k = None, int? max_seqlen_q = None, int? max_seqlen_k = None,"
    " float? softmax_scale = None, bool is_causal = False, int window_size_left = -1,"
    " int window_size_right = -1, float softcap = 0.0, bool deterministic = False,"
    " int sm_margin = 0) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _fwd(*given: Any) -> Results:
    """Compute the operator. Its defaults are not those of the function."""
    left_out = torch.ops.flash_attn_3.fwd.default._schema.arguments[len(given) :]
    return flash_attn_forward(*given, *(argument.default_value for argument in left_out))


def _bwd(*given: Any) -> tuple[Tensor, ...]:
    """Compute the operator, in which the room for gradients comes before the lengths."""
    left_out = torch.ops.flash_attn_3.bwd.default._schema.arguments[len(given) :]
    given += tuple(argument.default_value for argument in left_out)
    softmax_d = flash_attn_backward(*given[:6], *given[9:15], *given[6:9], *given[15:])
    return softmax_d, *(softmax_d.new_empty(0) for _ in range(4))


def add_operators() -> Library:
    """Add torch.ops.flash_attn_3.fwd and .bwd, until the library is destroyed. Operators that the
    real package has added keep their schema, and are computed here."""
    library = Library("flash_attn_3", "FRAGMENT")
    for schema, compute in ((FORWARD, _fwd), (BACKWARD, _bwd)):
        name = schema.split("(")[0]
        if not hasattr(torch.ops.flash_attn_3, name):
            library.define(schema)
        for device in ("CUDA", "CPU"):
            library.impl(name, compute, device)
    return library
