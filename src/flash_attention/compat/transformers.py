# SPDX-License-Identifier: Apache-2.0
"""`attention` as an attention implementation of Hugging Face transformers.

    from flash_attention.compat.transformers import register
    register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fa_jit")

Padding on either side, packed sequences, sliding windows, softcap, sinks, GQA and caches are
supported. Dropout, mask tensors, position biases, patterns such as image blocks, paged caches and
attention weights raise UnsupportedError. Models can be trained.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flash_attention.attention import attention
from flash_attention.call.call import Call, Keywords
from flash_attention.compat.eight_bits import refuse_without_factors
from flash_attention.errors import UnsupportedError

__all__ = ["NAME", "attention_forward", "padding_mask", "register"]

NAME = "fa_jit"

REFUSED = {
    "position_bias": "biases of the scores are not supported",
    "output_attentions": "attention weights are never formed",
    "block_table": "paged caches are not supported",
    "cache": "paged caches are not supported",
}
WITHOUT_EFFECT = {  # patterns that is_causal, sliding_window and padding express
    "causal_mask_function",
    "bidirectional_mask_function",
    "sliding_window_overlay.<locals>.inner_mask",
    "sliding_window_bidirectional_overlay.<locals>.inner_mask",
}
CONJUNCTION = "and_masks.<locals>.and_mask"
TRACED = ("causal_mask_function", "bidirectional_mask_function", "and_mask")


def register(name: str = NAME) -> str:
    """Register this package with transformers as `attn_implementation=name`. Returns the name.

    Raises UnsupportedError for a name that contains "flash", because transformers looks for such
    names on the hub.
    """
    if "flash" in name:
        raise UnsupportedError(
            f'the name {name!r} contains "flash", and transformers takes such names for its own or'
            f" for kernels of the hub; choose another, as {NAME!r}"
        )
    from transformers import AttentionInterface, AttentionMaskInterface

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
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention of (batch, heads, seq, d) tensors, as transformers calls it.

    `attention_mask` comes from `padding_mask`. Packed sequences may have cu_seq_lens and max_length
    instead. `s_aux` are the sinks. A sliding window includes the query's own key, so a query sees
    sliding_window - 1 keys before it and, without a causal mask, as many after it.

    Returns the output, (batch, seq, heads, d), and None for the attention weights. Raises
    UnsupportedError for what is not supported.
    """
    _refuse(dropout, kwargs)
    instead = "flash_attention.attention"
    refuse_without_factors("attention_forward", instead, query=query, key=key, value=value)
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    options: Keywords = {"causal": is_causal, "softmax_scale": scaling, "softcap": softcap or 0.0}
    if sliding_window is not None:
        options["window"] = (sliding_window - 1, sliding_window - 1)
    if s_aux is not None:
        options["sinks"] = s_aux.float()
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if attention_mask is not None:
        return _padded(q, k, v, attention_mask, options), None
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        return _dense(q, k, v, options), None
    if max_length_q is None or max_length_k is None:
        raise UnsupportedError(
            "cu_seq_lens_q and cu_seq_lens_k are given, max_length_q or max_length_k is not; pass"
            " the lengths of the longest sequences with them"
        )
    options["cu_seqlens_q"] = cu_seq_lens_q.to(torch.int32)
    options["cu_seqlens_k"] = cu_seq_lens_k.to(torch.int32)
    options["max_seqlen_q"], options["max_seqlen_k"] = int(max_length_q), int(max_length_k)
    out = attention(*(t.reshape(-1, *t.shape[2:]) for t in (q, k, v)), **options)
    return out.view(*q.shape[:3], -1), None


def padding_mask(
    batch_size: int,
    kv_length: int,
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None = None,
    q_length: int | None = None,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    **kwargs: Any,
) -> Tensor | None:
    """Make the mask for `attention_forward`: None, or which keys are no padding, (batch, keys).

    In a row of packed sequences, the mask numbers them from 1. Keys beyond the end of the mask are
    unused, as in a static cache that is not full.

    torch.compile does not know the values of a mask. It therefore keeps every mask, and packed
    sequences need cu_seq_lens. If they have none, but position_ids that start again, an assertion
    ends the run.
    """
    if torch.compiler.is_compiling():
        _check_traced(mask_function, bool(kwargs.get("use_vmap")))
        if attention_mask is None and q_length == kv_length:
            _assert_one_sequence(mask_function, batch_size, kv_length, kwargs.get("device"))
        return None if attention_mask is None else attention_mask[:, -kv_length:]
    packed = _sequences(mask_function, kv_length + kv_offset)
    if packed is not None:
        return packed + 1
    if attention_mask is None:
        seen = kv_length if q_length is None else int(q_offset) + q_length - kv_offset
        if not 0 < seen < kv_length:
            return None
        return torch.ones((batch_size, seen), dtype=torch.bool, device=kwargs.get("device"))
    mask = attention_mask[:, -kv_length:]
    return None if mask.shape[1] == kv_length and bool(mask.all()) else mask


@dataclass(frozen=True)
class _Entries:
    """The sequences of a padded tensor."""

    at: tuple[Tensor, ...]  # (row, column) of every token that is no padding
    lengths: Tensor  # int32 (sequences,)
    cu_seqlens: Tensor
    longest: int
    one_per_row: bool
    unbroken: bool  # no row has padding between two tokens
    padded_right: bool  # every row starts with a token, and is unbroken

    @classmethod
    def of(cls, mask: Tensor) -> _Entries:
        """Read a mask, and keep the result with it: all layers of a model get the same mask."""
        known: tuple[int, _Entries] | None = getattr(mask, "_entries", None)
        version = -1 if mask.is_inference() else mask._version
        if known is not None and known[0] == version:
            return known[1]
        entries = cls._read(mask)
        mask._entries = (version, entries)  # type: ignore[attr-defined]
        return entries

    @classmethod
    def _read(cls, mask: Tensor) -> _Entries:
        """Read a mask. This waits for the device a few times."""
        real = mask != 0
        lengths = real.sum(-1, dtype=torch.int32)
        columns = torch.arange(mask.shape[1], device=mask.device)
        after_first = columns - real.int().argmax(-1, keepdim=True)
        unbroken = (real == ((after_first >= 0) & (after_first < lengths[:, None]))).all()
        right = (real == (columns < lengths[:, None])).all()
        numbers = mask.to(torch.int64)
        facts = torch.stack(((numbers > 1).any(), unbroken, right))
        many, is_unbroken, padded_right = facts.tolist()
        at = torch.nonzero(real, as_tuple=True)
        if many:
            numbers = at[0] * (numbers.amax() + 1) + numbers[at]
            lengths = torch.unique_consecutive(numbers, return_counts=True)[1].to(torch.int32)
        cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        longest = int(lengths.max()) if lengths.numel() else 0
        return cls(
            *(at, lengths, cu_seqlens, longest),
            one_per_row=not many,
            unbroken=is_unbroken,
            padded_right=padded_right and not many,
        )


def _padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: Keywords) -> Tensor:
    """Compute attention of padded (batch, seq, heads, d) tensors, aligned with the mask's end.

    The output of padding is arbitrary. So a mask that only hides keys at the end needs no packing:
    a causal mask hides them anyway, and otherwise the number of keys suffices.
    """
    if mask.ndim != 2:
        raise UnsupportedError(
            f"attention_mask has shape {tuple(mask.shape)}; allowed are padding masks (batch,"
            " keys), and no mask of single scores"
        )
    k, v = k[:, : mask.shape[1]], v[:, : mask.shape[1]]
    entries = _Entries.of(mask)
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
    of_q = entries if seq_q == mask.shape[1] else _Entries.of(mask[:, -seq_q:])
    options = {**options, "cu_seqlens_q": of_q.cu_seqlens, "max_seqlen_q": of_q.longest}
    out = q.new_zeros((*q.shape[:-1], v.shape[-1]))
    out[of_q.at] = attention(q[of_q.at], k[entries.at], v[entries.at], **options)
    return out


def _dense(q: Tensor, k: Tensor, v: Tensor, options: Keywords) -> Tensor:
    """Compute attention of (batch, seq, heads, d) tensors, if possible into contiguous memory."""
    recorded = torch.is_grad_enabled() and Call(q, k, v, **options).needs_grad()
    if recorded or torch.compiler.is_compiling():
        return attention(q, k, v, **options)
    return attention(q, k, v, out=q.new_empty((*q.shape[:-1], v.shape[-1])), **options)


def _sequences(pattern: Callable[..., Any], length: int) -> Tensor | None:
    """Return the number of each token's sequence if the pattern is one of packed sequences."""
    name = getattr(pattern, "__qualname__", repr(pattern))
    if name in WITHOUT_EFFECT:
        return None
    free = inspect.getclosurevars(pattern).nonlocals if inspect.isfunction(pattern) else {}
    if name == CONJUNCTION:
        found = [_sequences(part, length) for part in free["mask_functions"]]
        return next((part for part in found if part is not None), None)
    if name == "packed_sequence_mask_function.<locals>.inner_mask":
        packed: Tensor = free["packed_sequence_mask"]
        return packed
    if name == "chunked_overlay.<locals>.inner_mask" and length <= free["chunk_size"]:
        return None
    raise _unknown(name, length)


def _check_traced(pattern: Callable[..., Any], custom: bool) -> None:
    """Check a pattern in a trace, where `_sequences` cannot evaluate it."""
    if custom or pattern.__name__ not in TRACED:
        raise _unknown(pattern.__name__, None)


def _assert_one_sequence(
    pattern: Callable[..., Any], batch: int, length: int, device: torch.device | str | None
) -> None:
    """Make the compiled function stop if a token does not see the token before it."""
    rows = torch.arange(batch, device=device)[:, None]
    later = torch.arange(1, length, device=device)[None]
    seen = pattern(rows, torch.zeros_like(rows), later, later - 1)
    torch._assert_async(
        seen.all(), "packed sequences in a compiled model: pass cu_seq_lens_q, cu_seq_lens_k"
    )


def _unknown(name: str, length: int | None) -> UnsupportedError:
    over = "" if length is None else f" over {length} keys"
    return UnsupportedError(
        f"the model asks for the attention pattern {name}{over}; allowed are causal, full,"
        ' sliding-window and packed ones: load the model with attn_implementation="sdpa"'
    )


def _refuse(dropout: float, kwargs: dict[str, Any]) -> None:
    if dropout:
        raise UnsupportedError(
            f"dropout is {dropout}, and there is no dropout here; call model.eval(), or to train"
            " load the model with attention_dropout=0.0"
        )
    for name, reason in REFUSED.items():
        if kwargs.get(name) is not None and kwargs[name] is not False:
            raise UnsupportedError(
                f"{name} is given, and {reason} here; leave it out or load the model with"
                ' attn_implementation="eager"'
            )
