# SPDX-License-Identifier: Apache-2.0
"""`attention` as an attention implementation of Hugging Face transformers.

    from flash_attention.compat.transformers import register
    register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fa_jit")

The versions 4.57 and 5 of transformers are supported, and in their models padding on either side,
packed sequences, sliding windows, softcap, sinks, dropout, GQA and caches. Mask tensors, position
biases, patterns such as image blocks, paged caches and attention weights raise UnsupportedError.
Models can be trained, also under autocast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flash_attention.attention import attention
from flash_attention.call.call import Call, Keywords
from flash_attention.compat.counter import count
from flash_attention.compat.eight_bits import refuse_without_factors
from flash_attention.compat.transformers_masks import Entries, documents_of, padding_mask
from flash_attention.compat.transformers_models import (
    check_version,
    in_one_dtype,
    refuse_deaf_models,
)
from flash_attention.errors import UnsupportedError

__all__ = ["NAME", "attention_forward", "padding_mask", "register"]

NAME = "fa_jit"

REFUSED = {
    "position_bias": "biases of the scores are not supported",
    "output_attentions": "attention weights are never formed",
    "head_mask": "attention weights are never formed",
    "block_table": "paged caches are not supported",
    "cache": "paged caches are not supported",
}


def register(name: str = NAME) -> str:
    """Register this package with transformers as `attn_implementation=name`. Returns the name.

    Models that do not call registered implementations raise UnsupportedError when they are made
    with this one.

    Raises UnsupportedError for versions of transformers before 4.57 and after 5.x, and for a name
    that contains "flash", because transformers looks for such names on the hub.
    """
    if "flash" in name:
        raise UnsupportedError(
            f'the name {name!r} contains "flash", and transformers takes such names for its own or'
            f" for kernels of the hub; choose another, as {NAME!r}"
        )
    check_version()
    from transformers import AttentionInterface, AttentionMaskInterface

    refuse_deaf_models(name)
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, padding_mask)
    return name


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    position_ids: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention of (batch, heads, seq, d) tensors, as transformers calls it.

    `attention_mask` comes from `padding_mask`. Packed sequences may have cu_seq_lens and max_length
    instead, or one row of position_ids that start again. `s_aux` are the sinks. A sliding window
    includes the query's own key, so a query sees sliding_window - 1 keys before it and, without a
    causal mask, as many after it. If a tensor is float32 under autocast, or in a model with 16-bit
    weights, all are cast to 16 bits.

    Returns the output, (batch, seq, heads, d), and None for the attention weights. Raises
    UnsupportedError for what is not supported.
    """
    _refuse(kwargs)
    instead = "flash_attention.attention"
    refuse_without_factors("attention_forward", instead, query=query, key=key, value=value)
    causal = _is_causal(module, is_causal, padded=attention_mask is not None)
    options: Keywords = {"causal": causal, "softmax_scale": scaling, "softcap": softcap or 0.0}
    options["dropout_p"] = dropout
    if sliding_window is not None:
        options["window"] = (sliding_window - 1, sliding_window - 1)
    if s_aux is not None:
        options["sinks"] = s_aux.float()
    q, k, v = (t.transpose(1, 2) for t in in_one_dtype(module, query, key, value))
    if attention_mask is not None:
        if not Entries.of(attention_mask).whole:
            return _padded(q, k, v, attention_mask, options), None
        k, v = (t[:, : attention_mask.shape[1]] for t in (k, v))
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        documents = documents_of(position_ids, q.shape[0], k.shape[1])
        if documents is not None:
            return _padded(q, k, v, documents, options), None
        return _dense(q, k, v, options), None
    if max_length_q is None or max_length_k is None:
        raise UnsupportedError(
            "cu_seq_lens_q and cu_seq_lens_k are given, max_length_q or max_length_k is not; pass"
            " the lengths of the longest sequences with them"
        )
    options |= {"cu_seqlens_q": cu_seq_lens_q.int(), "cu_seqlens_k": cu_seq_lens_k.int()}
    options["max_seqlen_q"], options["max_seqlen_k"] = int(max_length_q), int(max_length_k)
    out = _counted(*(t.reshape(-1, *t.shape[2:]) for t in (q, k, v)), **options)
    return out.view(*q.shape[:3], -1), None


def _padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: Keywords) -> Tensor:
    """Compute attention of padded (batch, seq, heads, d) tensors, aligned with the mask's end.

    The output of padding is arbitrary. So a mask that only hides keys at the end needs no packing:
    a causal mask hides them anyway, and otherwise the number of keys suffices.
    """
    k, v = k[:, : mask.shape[1]], v[:, : mask.shape[1]]
    entries = Entries.of(mask)
    seq_q, seq_k = q.shape[1], k.shape[1]
    placed = options["causal"] or "window" in options
    if "window" in options and not entries.unbroken:
        raise UnsupportedError(
            "attention_mask hides tokens between others of a row, over which a sliding window would"
            ' close; pad on one side, or load the model with attn_implementation="sdpa"'
        )
    if entries.padded_right and options["causal"] and seq_q == seq_k:
        return _dense(q, k, v, options)
    if entries.padded_right and not placed:
        return _dense(q, k, v, {**options, "seqused_k": entries.lengths})
    options = {**options, "cu_seqlens_k": entries.cu_seqlens, "max_seqlen_k": entries.longest}
    if entries.one_per_row and (seq_q == 1 or not placed):
        return _dense(q, k[entries.at], v[entries.at], options)
    of_q = entries if seq_q == mask.shape[1] else Entries.of(mask[:, -seq_q:])
    options = {**options, "cu_seqlens_q": of_q.cu_seqlens, "max_seqlen_q": of_q.longest}
    out = q.new_zeros((*q.shape[:-1], v.shape[-1]))
    out[of_q.at] = _counted(q[of_q.at], k[entries.at], v[entries.at], **options)
    return out


def _counted(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out: Tensor = attention(q, k, v, **options)
    count("transformers")
    return out


def _dense(q: Tensor, k: Tensor, v: Tensor, options: Keywords) -> Tensor:
    """Compute attention of (batch, seq, heads, d) tensors, if possible into contiguous memory."""
    recorded = torch.is_grad_enabled() and Call(q, k, v, **options).needs_grad()
    if recorded or torch.compiler.is_compiling():
        return _counted(q, k, v, **options)
    return _counted(q, k, v, out=q.new_empty((*q.shape[:-1], v.shape[-1])), **options)


def _is_causal(module: torch.nn.Module, is_causal: bool | None, *, padded: bool) -> bool:
    """Whether a layer's attention is causal.

    A layer that is causal may pass is_causal=False together with a mask, as for torch's function,
    whose masks have the causal part. The masks here have not. transformers 5 writes into the config
    that a call of the whole model is not causal.
    """
    causal = bool(getattr(module, "is_causal", True))
    if is_causal is None or (padded and not is_causal and causal):
        return causal and getattr(getattr(module, "config", None), "is_causal", True) is not False
    return bool(is_causal)


def _refuse(kwargs: dict[str, Any]) -> None:
    for name, reason in REFUSED.items():
        if kwargs.get(name) is not None and kwargs[name] is not False:
            raise UnsupportedError(
                f"{name} is given, and {reason} here; leave it out or load the model with"
                ' attn_implementation="eager"'
            )
