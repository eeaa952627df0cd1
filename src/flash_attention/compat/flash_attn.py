# SPDX-License-Identifier: Apache-2.0
"""The functions of the flash-attn package (version 2), with its parameters, order and defaults.

Dense tensors are (batch, seq, heads, d). Packed sequences are (total, heads, d). Masks are aligned
with the last key. Both ends of a window are included, and -1 means no limit. As in flash-attn, a
tensor is copied if its last dimension is not contiguous, or if its head dimension is not a multiple
of 8 and has to be padded.

All functions without a KV cache are differentiable. With `deterministic` the backward pass gives
the same bits in every run; the forward pass always does. Results that have no gradient (of caches,
pages and 8-bit tensors) are computed if a tensor requires grad, too, and a backward pass through
them raises UnsupportedError.

There are three differences from flash-attn. Dropout draws other numbers:
`flash_attention.dropout_mask` says which weights it keeps. The softmax_lse of a query that sees no
key is -inf, where flash-attn stores +inf. Biases of `alibi_slopes` are always those of the
distance, where flash-attn's causal kernels shift those of a row by one number, which changes its
softmax_lse alone.

In addition, softmax_lse is differentiable, v may have another head dimension than q and k, a page
of a paged KV cache may have any number of keys, and a cache may have pages, an index and left
padding together.
docs/flash_attn_semantics.md describes every parameter.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from numbers import Integral
from typing import Any, TypeVar

from torch import Tensor

from flash_attention.attention import attention
from flash_attention.call.call import Call, Keywords, Window, whole_window
from flash_attention.call.checks import check_dense
from flash_attention.call.options import check_window
from flash_attention.compat import values
from flash_attention.compat.alibi import biases
from flash_attention.compat.counter import count
from flash_attention.compat.eight_bits import refuse_without_factors
from flash_attention.compat.forward_only import computed_alone, of_a_cache, why_no_gradient
from flash_attention.compat.kv_cache import Cache
from flash_attention.compat.rotary import rotary_of
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.families.sm90.forward.decode import BLOCK_KEYS
from flash_attention.ops import is_traced

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

NO_WINDOW: Window = (-1, -1)

Result = Tensor | tuple[Tensor, Tensor, None]
"""The output. With `return_attn_probs`, (out, softmax_lse, None): probabilities are not stored."""

Packed = TypeVar("Packed", bound=Callable[..., Result])


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """Compute attention of (batch, seq, heads, d) tensors.

    Returns out, or with `return_attn_probs` (out, softmax_lse, None), where softmax_lse is (batch,
    heads, seq_q).
    """
    _refuse_8_bits("flash_attn_func", q=q, k=k, v=v)
    options = options_of(softmax_scale, causal, window_size, softcap, dropout_p)
    options |= biases(alibi_slopes, q, k, options)
    out, lse = attend(q, k, v, options, return_attn_probs, deterministic)
    return out if lse is None else (out, lse, None)


def _parameters_of(
    function: Callable[..., Result], first: int, last: int | None = None
) -> Callable[[Packed], Packed]:
    """Make `help` and `inspect` show the parameters `first` to `last` of `function`, to which a
    function of kv-packed or qkv-packed tensors passes them on."""

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
    """Compute `flash_attn_func` with k and v in one tensor, (batch, seq, 2, heads_k, d)."""
    k, v = unpacked("kv", kv, 2, ndim=5)
    return flash_attn_func(q, k, v, *options, **named)


@_parameters_of(flash_attn_func, 3)
def flash_attn_qkvpacked_func(qkv: Tensor, *options: Any, **named: Any) -> Result:
    """Compute `flash_attn_func` with q, k and v in one tensor, (batch, seq, 3, heads, d)."""
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
    window_size: Window = NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Result:
    """Compute attention of packed sequences, (total, heads, d).

    With `block_table`, int32 (batch, n), k and v are a paged KV cache, (pages, page_size, heads_k,
    d). The table lists the pages of each sequence, and the differences of cu_seqlens_k are its
    numbers of keys. If a `max_seqlen` is a tensor, reading it waits for its device.

    Returns out, or with `return_attn_probs` (out, softmax_lse, None), where softmax_lse is (heads,
    total_q).
    """
    _refuse_8_bits("flash_attn_varlen_func", q=q, k=k, v=v)
    options = options_of(softmax_scale, causal, window_size, softcap, dropout_p)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    options |= packed_options(k, *lengths, block_table)
    options |= biases(alibi_slopes, q, k, options)
    out, lse = attend(q, k, v, options, return_attn_probs, deterministic)
    return out if lse is None else (out, lse, None)


@_parameters_of(flash_attn_varlen_func, 3, -1)  # k and v in one tensor are not paged
def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **named: Any) -> Result:
    """Compute `flash_attn_varlen_func` with k and v in one tensor, (total_k, 2, heads_k, d)."""
    k, v = unpacked("kv", kv, 2, ndim=4)
    return flash_attn_varlen_func(q, k, v, *options, **named)


@_parameters_of(flash_attn_varlen_func, 7, -1)
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *options: Any, **named: Any
) -> Result:
    """Compute `flash_attn_varlen_func` with q, k and v in one tensor, (total, 3, heads, d)."""
    q, k, v = unpacked("qkv", qkv, 3, ndim=4)
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(q, k, v, *lengths, *options, **named)


@of_a_cache
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
    window_size: Window = NO_WINDOW,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention with a KV cache, (batch, seq_cache, heads_k, d).

    `cache_seqlens` is the number of keys in use of each sequence. `k` and `v`, (batch, seq_new,
    heads_k, d), are first stored in the cache after them, by a kernel. With `block_table`, int32
    (batch, n), the cache is paged, (pages, page_size, heads_k, d), and the table lists the pages of
    each sequence. With `cache_batch_idx`, int32 (batch,), sequence i of q uses that sequence of the
    cache, or that row of the table. With `cache_leftpad`, int32 (batch,), the keys of a sequence
    start at that row. These may be combined.

    `rotary_cos` and `rotary_sin`, (seq_ro, rotary_dim / 2), rotate the new keys on their way into
    the cache, at positions cache_seqlens, cache_seqlens + 1 and so on, and q, which is not changed
    itself: at the same positions with a mask, at position cache_seqlens without. seq_ro is at least
    the room of a sequence in the cache, and rotary_dim a multiple of 16.

    New keys may not fit into the cache, or belong to pages that do not exist. The call raises
    UnsupportedError if the host can tell: on the CPU, if cache_seqlens is an int, and if
    $FLASH_ATTENTION_VALIDATE has every call wait for the GPU. Otherwise the GPU stores none of the
    new keys of that sequence, and its output is 0 and its softmax_lse -inf. Other sequences are not
    affected.

    `num_splits` 0 splits the keys if that fills the GPU, 1 does not split them, and n splits those
    of the longest sequence that fits the cache into n splits or fewer. The results have no
    gradient. Returns out, or with `return_softmax_lse` (out, softmax_lse).
    """
    _refuse_8_bits("flash_attn_with_kvcache", q=q, k_cache=k_cache, v_cache=v_cache)
    check_dense("q", q)
    options = options_of(softmax_scale, causal, window_size, softcap)
    cache = Cache.of(k_cache, v_cache, block_table, cache_batch_idx, cache_leftpad)
    options["split_keys"] = split_keys(num_splits, cache.max_keys)
    if alibi_slopes is not None:
        options |= biases(alibi_slopes, q, None, options)
        options["split_keys"] = None  # kernels with biases split no keys
        cache_seqlens = cache.max_keys if cache_seqlens is None else cache_seqlens
    rotary = rotary_of(rotary_cos, rotary_sin, rotary_interleaved, options)
    attended = cache.attended(q, k, v, cache_seqlens, rotary, options)
    out, lse = attend(*attended, options, return_softmax_lse)
    return out if lse is None else (out, lse)


def options_of(
    softmax_scale: float | None,
    causal: bool,
    window_size: Window,
    softcap: float,
    dropout_p: float = 0.0,
) -> Keywords:
    """Convert options of flash-attn to keywords of `attention`. A window may also be a list, or a
    tensor, whose numbers are read from its device."""
    window: Any = window_size
    if window is not NO_WINDOW:
        if isinstance(window, Tensor) and not window.is_floating_point():
            window = window.tolist()
        window = whole_window(tuple(window) if isinstance(window, list) else window)
        check_window(window, "window_size")
    return {
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window": window,
        "softcap": softcap,
        "dropout_p": dropout_p,
    }


def packed_options(
    k: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    block_table: Tensor | None,
) -> Keywords:
    """Convert the lengths of packed sequences, and the pages of their keys, to keywords of
    `attention`."""
    options: Keywords = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": whole(max_seqlen_q)}
    longest = whole(max_seqlen_k)
    if block_table is None:
        return options | {"cu_seqlens_k": cu_seqlens_k, "max_seqlen_k": longest}
    check_dense("k", k)
    check_dense("block_table", block_table, ("batch", "pages"))
    check_dense("cu_seqlens_k", cu_seqlens_k, ("batch + 1",))
    pages: Keywords = {"block_table": block_table, "seqused_k": cu_seqlens_k.diff()}
    return options | pages | {"max_seqlen_k": longest}


def refuse(instead: Mapping[str, str], given: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for a parameter that has not its default value, None, False or 0.
    `instead` says of each why there is no kernel for it, and what to do."""
    for name, value in given.items():
        if value is not None and not (isinstance(value, int) and value == 0):
            raise UnsupportedError(f"{name} is given, and {instead[name]}")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Keywords,
    return_lse: bool,
    deterministic: bool = False,
    into: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention of tensors with any strides, if `into` is given into that, and the
    log-sum-exp with `return_lse`. A result that has no gradient is computed alone."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_dense(name, tensor)
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    validate = values.validates and not is_traced(q, k, v) and values.has_values(q)
    given: dict[str, Any] = {"out": into, "deterministic": deterministic, "validate": validate}
    compute: Callable[..., Any] = attention
    try:
        found = compute(q, k, v, **options, **given, return_lse=bool(return_lse))
    except UnsupportedError:
        call = Call(q, k, v, **options)
        if (why := why_no_gradient(call)) is None:
            raise
        again = partial(attend, q, k, v, options, return_lse, deterministic, into)
        out, lse = computed_alone(why, again, q, k, v, *call.descales().values())
        return out, lse
    count("flash_attn")
    return found if return_lse else (found, None)


def unpacked(name: str, tensor: Tensor, count: int, ndim: int) -> tuple[Tensor, ...]:
    """Split a tensor that holds `count` of q, k and v in the dimension before the heads."""
    check_dense(name, tensor)
    if tensor.ndim != ndim or tensor.shape[-3] != count:
        dims = f"({'batch, seq' if ndim == 5 else 'total'}, {count}, heads, d)"
        raise UnsupportedError(f"{name} has shape {tuple(tensor.shape)}; allowed is {dims}")
    return tensor.unbind(-3)


def whole(length: int | None) -> int | None:
    """Convert a length to an int. Reading a tensor waits for its device. `attention` refuses what
    is not a whole number."""
    if length is None or isinstance(length, int):
        return length
    try:
        return operator.index(length)
    except TypeError:
        return length


def _refuse_8_bits(function: str, **tensors: Tensor) -> None:
    instead = f"flash_attention.compat.flash_attn_3.{function}"
    refuse_without_factors(f"{function} of version 2", instead, **tensors)


def split_keys(num_splits: int, keys: int) -> int | None:
    """Convert `num_splits`, into how many splits the keys are divided, to the `split_keys` of
    `attention`, how many keys a split has. 0 leaves it to `attention`."""
    whole = isinstance(num_splits, Integral) and not isinstance(num_splits, bool)
    if not whole or num_splits < 0:
        raise UnsupportedError(
            f"num_splits is {quoted(num_splits)}; pass into how many splits the keys go, or"
            " 0 for as many as fill the GPU"
        )
    if num_splits == 0:
        return None
    blocks = -(-max(1, keys) // BLOCK_KEYS)
    return -(-blocks // int(num_splits)) * BLOCK_KEYS
