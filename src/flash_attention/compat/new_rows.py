# SPDX-License-Identifier: Apache-2.0
"""The new keys and values of a call with a KV cache: padded, or packed with cumulative lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from flash_attention.call.cache_call import CacheCall
from flash_attention.call.checks import check_dense
from flash_attention.call.lengths import check_starts
from flash_attention.call.overlap import may_overlap, overlaps_itself
from flash_attention.call.tensors import TensorView
from flash_attention.errors import UnsupportedError

PADDED = "(batch, seq_new, heads_k, d)"
PACKED = "(total_new, heads_k, d)"


def check_new(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, batch: int | None) -> None:
    """Check that new rows have the heads, the head dimension and the dtype of the cache, and that
    they can be stored. Packed ones have no batch."""
    form = PADDED if batch is not None else PACKED
    check_dense("k", k)
    if k.ndim != form.count(",") + 1:
        packed = "" if batch is not None else "with cu_seqlens_k_new "
        raise UnsupportedError(f"k has shape {tuple(k.shape)}; {packed}new keys are {form}")
    rows = (k.shape[0],) if batch is None else (batch, k.shape[1])
    for name, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
        check_dense(name, new)
        wanted = (*rows, *cache.shape[2:])
        if (tuple(new.shape), new.dtype, new.device) != (wanted, cache.dtype, cache.device):
            raise UnsupportedError(
                f"{name} has shape {tuple(new.shape)} and is {new.dtype} on {new.device}; to be"
                f" stored in {name}_cache it must be {form} = {wanted}, {cache.dtype} on"
                f" {cache.device}"
            )
        if cache.stride(-1) != 1 and cache.shape[-1] > 1:
            raise UnsupportedError(
                f"the last dimension of {name}_cache has stride {cache.stride(-1)}; new rows are"
                " stored in place: pass a cache whose last dimension is contiguous"
            )


def check_memory(call: CacheCall) -> None:
    """Check that rows that are stored change neither each other nor what is read."""
    for name, cache in (("k_cache", call.k_cache), ("v_cache", call.v_cache)):
        if not cache.is_contiguous() and overlaps_itself(TensorView.of(name, cache).layout):
            raise UnsupportedError(
                f"{name} has shape {tuple(cache.shape)} and strides {cache.stride()}, so several of"
                " its elements share memory, and new rows are stored in place: pass a cache that"
                " was not expanded"
            )
        for given, tensor in (("q", call.q), ("k", call.k), ("v", call.v)):
            if tensor is not None and _overlap(cache, tensor):
                raise UnsupportedError(
                    f"{given} and {name} overlap in memory: {given} would be overwritten while it"
                    f" is read; pass {given}.clone()"
                )
    if call.rotary is not None and _overlap(call.k_cache[..., : call.rotary.dim], call.v_cache):
        raise UnsupportedError(
            f"v_cache has some of the first {call.rotary.dim} columns of k_cache, which rotary_cos"
            " and rotary_sin rotate, and new values are not rotated; rotate q and k before the"
            " call, or pass a v_cache with memory of its own"
        )


def _overlap(cache: Tensor, other: Tensor) -> bool:
    """Whether two tensors share memory. Those with storages of their own, which most have, are told
    apart without their layouts."""
    if cache.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    first, second = TensorView.of("cache", cache), TensorView.of("other", other)
    return may_overlap(second.pointer - first.pointer, first.layout, second.layout)


def counts_of(k: Tensor, starts: Tensor | None, batch: int, *, values: bool) -> list[int]:
    """Return the number of new rows of each sequence. Packed ones whose values cannot be read count
    as none."""
    if starts is None:
        return [k.shape[1]] * batch
    if len(starts) != batch + 1:
        raise UnsupportedError(
            f"cu_seqlens_k_new has {len(starts)} numbers; q has {batch} sequences, pass {batch + 1}"
        )
    return check_starts("k", "cu_seqlens_k_new", starts, len(k)) if values else [0] * batch


def contiguous_rows(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy whose last dimension is contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def in_pairs(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor of 8 bits as pairs, which an update moves as if they were 16-bit numbers."""
    *strides, last = tensor.stride()
    if last != 1 or any(n % 2 for n in (tensor.shape[-1], tensor.storage_offset(), *strides)):
        raise UnsupportedError(
            f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}; rows of 8 bits"
            " that are stored in a cache are contiguous, and have an even number of elements: pass"
            f" {name}.contiguous(), with an even d"
        )
    return tensor.view(torch.float16)
