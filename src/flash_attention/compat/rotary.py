# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings as flash-attn describes them."""

from __future__ import annotations

from torch import Tensor

from flash_attention.call.cache_call import CacheCall, Rotary
from flash_attention.call.call import Keywords
from flash_attention.call.checks import check_dense
from flash_attention.call.options import check_switch
from flash_attention.errors import UnsupportedError

DIM_STEP = 16


def rotary_of(
    cos: Tensor | None,
    sin: Tensor | None,
    interleaved: bool,
    options: Keywords,
    seqlens: Tensor | None = None,
) -> Rotary | None:
    """Make a rotary embedding from the arguments of flash-attn. Without angles there is none, and
    positions have no meaning, as in flash-attn.

    Without a mask all queries of a sequence have the position of the first.
    """
    if cos is None and sin is None:
        return None
    if cos is None or sin is None:
        missing = "rotary_cos" if cos is None else "rotary_sin"
        raise UnsupportedError(f"{missing} is missing; pass rotary_cos and rotary_sin together")
    for name, table in (("rotary_cos", cos), ("rotary_sin", sin)):
        check_dense(name, table, ("seqlen_ro", "rotary_dim / 2"))
    check_switch("rotary_interleaved", interleaved)
    cos, sin = (t if t.stride(-1) == 1 else t.contiguous() for t in (cos, sin))
    unlimited = all(side in (-1, None) for side in options["window"] or ())
    one_position = unlimited and not options["causal"]
    return Rotary(cos, sin, bool(interleaved), seqlens, one_position)


def check_rotary(call: CacheCall, rotary: Rotary, *, values: bool) -> None:
    """Check that a rotary embedding fits a call, and with `values` that all its positions have
    angles."""
    q = call.q
    if rotary.cos.ndim != 2 or rotary.cos.shape != rotary.sin.shape:
        raise UnsupportedError(
            f"rotary_cos has shape {tuple(rotary.cos.shape)}, rotary_sin"
            f" {tuple(rotary.sin.shape)}; both must be (seqlen_ro, rotary_dim / 2)"
        )
    for name, table in (("rotary_cos", rotary.cos), ("rotary_sin", rotary.sin)):
        if (table.dtype, table.device) != (q.dtype, q.device):
            raise UnsupportedError(
                f"{name} is {table.dtype} on {table.device}, q is {q.dtype} on {q.device}; convert"
                f" it with {name}.to(q)"
            )
    if rotary.dim % DIM_STEP or not 0 < rotary.dim <= q.shape[-1]:
        raise UnsupportedError(
            f"rotary_cos has {rotary.dim // 2} columns, for a rotary_dim of {rotary.dim}; allowed"
            f" are multiples of {DIM_STEP} up to the head dimension, {q.shape[-1]}"
        )
    if len(rotary.cos) < call.max_rows:
        raise UnsupportedError(
            f"rotary_cos and rotary_sin have {len(rotary.cos)} rows; a sequence of the cache has"
            f" room for {call.max_rows} keys, pass as many"
        )
    first = rotary.seqlens
    if first is not None:
        _check_seqlens(call, first)
    if values:
        _check_positions(call, rotary)


def _check_seqlens(call: CacheCall, first: Tensor) -> None:
    check_dense("rotary_seqlens", first, ("batch",))
    like = (call.batch,), call.k_cache.device
    if (tuple(first.shape), first.device) != like or str(first.dtype) != "torch.int32":
        raise UnsupportedError(
            f"rotary_seqlens has shape {tuple(first.shape)} and is {first.dtype} on"
            f" {first.device}; pass torch.int32 of shape ({call.batch},) on {like[1]}"
        )


def _check_positions(call: CacheCall, rotary: Rotary) -> None:
    first = call.lengths if rotary.seqlens is None else rotary.seqlens
    starts = first.tolist() if isinstance(first, Tensor) else [first] * call.batch
    if call.cu_seqlens_q is None:
        queries = [call.q.shape[1]] * call.batch
    else:
        queries = call.cu_seqlens_q.diff().tolist()
    new = [call.new_rows] * call.batch
    if call.cu_seqlens_k_new is not None:
        new = call.cu_seqlens_k_new.diff().tolist()
    for sequence, (start, rows, more) in enumerate(zip(starts, queries, new, strict=True)):
        if start < 0:
            raise UnsupportedError(
                f"rotary_seqlens[{sequence}] is {start}; positions start at 0, pass no number less"
                " than that"
            )
        end = start + max(more, 1 if rotary.one_position else rows)
        if end > len(rotary.cos):
            raise UnsupportedError(
                f"sequence {sequence} has the positions {start} to {end - 1}; rotary_cos and"
                f" rotary_sin have {len(rotary.cos)} rows, pass at least {end}"
            )
