# SPDX-License-Identifier: Apache-2.0
"""Checks of what a call has besides q, k and v: its options and its optional tensors."""

from __future__ import annotations

import ctypes
import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flash_attention.call.call import DESCALES, Call
from flash_attention.call.dropout import check_rng_state
from flash_attention.call.function import check_function
from flash_attention.call.results import BLOCK_DIMS, DESCALED_KEYS, E4M3
from flash_attention.call.tensors import MAX_ROWS, TensorView, shown
from flash_attention.errors import UnsupportedError, one, quoted

SIZES = {
    "sinks": "heads",
    "cu_seqlens_q": "batch + 1",
    "cu_seqlens_k": "batch + 1",
    "seqused_k": "batch",
    "rng_state": "2",
    "block_table": "batch, n",
    **dict.fromkeys(DESCALES, "batch, heads_k"),
}
"""The dimensions of each optional tensor."""


def check_options(call: Call) -> None:
    """Check the options that do not depend on the tensors."""
    check_softmax_scale(call.softmax_scale)
    check_softcap(call.softcap)
    check_dropout(call)
    check_window(call.window)
    check_split_keys(call.split_keys)
    check_switch("causal", call.causal)
    check_switch("return_lse", call.return_lse)
    check_batch_invariant(call)
    check_function(call.function, call.q)
    check_beside_function(call)
    check_return_max(call)


def check_switch(name: str, value: object) -> None:
    """Check that a switch is True or False, or equal to one of them."""
    if not isinstance(value, bool | np.bool_ | Integral) or value not in (0, 1):
        raise UnsupportedError(f"{name} is {quoted(value)}; pass True or False")


def check_softmax_scale(scale: object, name: str = "softmax_scale") -> None:
    """Check that the softmax scale is None or a positive number in the range of float32."""
    if scale is None:
        return
    if not isinstance(scale, Real):
        raise UnsupportedError(
            f"{name} is {one(type(scale).__name__)}; pass a positive number, or None for"
            " 1 / sqrt(d_head)"
        )
    if not 0 < _in_float32(scale) < math.inf:
        raise UnsupportedError(
            f"{name} is {quoted(scale)}; allowed are positive numbers that float32 holds: to turn"
            " the sign of the scores pass -q"
        )


def check_softcap(softcap: object) -> None:
    """Check that the softcap is 0, for none, or a positive number in the range of float32."""
    if not isinstance(softcap, Real):
        raise UnsupportedError(
            f"softcap is {one(type(softcap).__name__)}; pass a positive number, or 0.0 for no"
            " softcap"
        )
    if softcap != 0 and not 0 < _in_float32(softcap) < math.inf:
        raise UnsupportedError(
            f"softcap is {quoted(softcap)}; allowed are positive numbers that float32 holds, and"
            " 0.0 for no softcap"
        )


def check_dropout_p(p: object) -> None:
    """Check that the probability of dropout is 0, for none, or below 1."""
    if not isinstance(p, Real) or isinstance(p, bool) or not 0 <= _float_of(p) < 1:
        raise UnsupportedError(
            f"dropout_p is {quoted(p)}; allowed are numbers from 0.0, for no dropout, to below 1.0"
        )


def check_dropout(call: Call) -> None:
    """Check the probability of dropout, that its random numbers have a state, and what dropout is
    not combined with."""
    p = call.dropout_p
    check_dropout_p(p)
    if p == 0 and call.rng_state is not None:
        raise UnsupportedError(
            "rng_state is given, and dropout_p is 0.0, so that nothing is drawn; leave it out"
        )
    if p > 0 and call.rng_state is None:
        raise UnsupportedError(
            f"dropout_p is {p}, and rng_state is missing; pass two numbers on the device of q, such"
            " as torch.randint(2**63 - 1, (2,), device=q.device), and the same to both passes"
        )
    for name in ("batch_invariant", "split_keys"):
        if p > 0 and getattr(call, name):
            raise UnsupportedError(
                f"dropout_p is {p}, and {name} is given; dropout is for training, and kernels with"
                f" {name} have none: leave one of them out"
            )


def _in_float32(number: Real) -> float:
    """Round a number to float32, as a kernel gets it."""
    return ctypes.c_float(_float_of(number)).value


def _float_of(number: Real) -> float:
    """Return a number as a float, which is infinite if the number is too large."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def check_window(window: object, name: str = "window") -> None:
    """Check that a window is None or two whole numbers. None and -1 mean no limit on a side."""
    if window is None:
        return
    if not isinstance(window, tuple) or len(window) != 2:
        raise UnsupportedError(
            f"{name} is {quoted(window)}; pass a tuple (left, right): how many keys a query sees"
            " before and after the key that it is aligned with, -1 for all"
        )
    for side in window:
        whole = isinstance(side, Integral) and not isinstance(side, bool)
        if side is not None and (not whole or int(side) < -1):
            raise UnsupportedError(
                f"{name} is {quoted(window)}; each side is a whole number from 0 on, or -1 or None"
                " for no limit"
            )


def check_split_keys(keys: object) -> None:
    """Check that the length of the splits of split-KV is None or a positive integer."""
    if keys is None:
        return
    if not isinstance(keys, Integral) or isinstance(keys, bool) or int(keys) < 1:
        raise UnsupportedError(
            f"split_keys is {quoted(keys)}; pass how many keys a split has, a positive int, or None"
        )


def check_batch_invariant(call: Call) -> None:
    """Check the switch of batch invariance, which split_keys contradicts."""
    check_switch("batch_invariant", call.batch_invariant)
    if call.batch_invariant and call.split_keys is not None:
        raise UnsupportedError(
            f"batch_invariant is given with split_keys={call.split_keys}, and kernels whose rows do"
            " not depend on each other do not split keys; leave one of them out"
        )


def check_beside_function(call: Call) -> None:
    """Check that a score or mask function has none of the options of kernels without one."""
    for name in ("batch_invariant", "split_keys"):
        if call.function is not None and getattr(call, name):
            raise UnsupportedError(
                f"{name} is given, and so is a score or mask function, which kernels with {name}"
                " do not have; leave one of them out"
            )


def check_return_max(call: Call) -> None:
    """Check the switch of maxima, which kernels for decoding do not return."""
    check_switch("return_max", call.return_max)
    for name in ("batch_invariant", "split_keys"):
        if call.return_max and getattr(call, name):
            raise UnsupportedError(
                f"return_max is given, and so is {name}; maxima are for training, and kernels with"
                f" {name} return none: leave one of them out"
            )
    if call.return_max and call.function is not None:
        raise UnsupportedError(
            "return_max is given, and so is a score or mask function; there are no maxima of"
            " changed scores: leave one of them out"
        )


def check_types(call: Call) -> None:
    """Check the types of the optional tensors, and that cu_seqlens come with max_seqlen. That of
    keys may come with pages, too."""
    if call.rng_state is not None:
        check_rng_state(call.rng_state, call.q.device)
    for name, tensor in call.extras().items():
        TensorView.of(name, tensor, (SIZES[name],))
    for of, cu_seqlens, length in (
        ("q", call.cu_seqlens_q, call.max_seqlen_q),
        ("k", call.cu_seqlens_k, call.max_seqlen_k),
    ):
        bounds_pages = of == "k" and call.block_table is not None and length is not None
        if cu_seqlens is not None or bounds_pages:
            _check_max_seqlen(of, length)
        elif length is not None:
            raise UnsupportedError(
                f"max_seqlen_{of} is given without cu_seqlens_{of}; leave it out, the length is"
                f" that of {of}"
            )


def check_extras(call: Call, q: TensorView, k: TensorView) -> None:
    """Check the optional tensors. q and k were checked before."""
    check_types(call)
    paged = call.block_table is not None
    batch = _batch("q", q, call.cu_seqlens_q, q)
    batch_k = batch if paged else _batch("k", k, call.cu_seqlens_k, q)
    if batch != batch_k:
        raise UnsupportedError(
            f"there are {batch} sequences of queries and {batch_k} of keys; a packed tensor"
            " has one less than its cu_seqlens has numbers, and both must have the same"
        )
    if call.sinks is not None:
        exact = q.dtype == call.sinks.dtype == torch.float64
        dtype = torch.float64 if exact else torch.float32
        _check_vector("sinks", call.sinks, dtype, q, q.shape[-2])
    if call.seqused_k is not None:
        _check_vector("seqused_k", call.seqused_k, torch.int32, q, batch)
    if call.block_table is not None:
        _check_paging(call)
        _check_table(call.block_table, q, batch, page_keys=k.shape[1])
    _check_descales(call, q, k, batch)


def _check_descales(call: Call, q: TensorView, k: TensorView, batch: int) -> None:
    """Check the factors of 8-bit tensors, which 16-bit ones do not have."""
    for name, of, dtype in zip(DESCALES, "qkv", (q.dtype, k.dtype, k.dtype), strict=True):
        if dtype != E4M3 and getattr(call, name) is not None:
            raise UnsupportedError(
                f"{name} is given, and {of} is {dtype}; only {E4M3} tensors have descale factors:"
                f" leave it out, or convert {of}"
            )
        if dtype == E4M3:
            _check_descale(call, name, of, (batch, k.shape[-2]), q)
    if k.dtype == E4M3:
        _check_blocks(call, k)


def _check_descale(
    call: Call, name: str, of: str, of_heads: tuple[int, int], q: TensorView
) -> None:
    if getattr(call, name) is None:
        raise UnsupportedError(
            f"{of} is {E4M3}, and {name} is missing; pass the factor that {of} is multiplied by:"
            " float32 (batch, heads_k), or (1,) for all, as torch.ones(1, device=q.device) is for"
            " an unscaled tensor"
        )
    view = TensorView.of(name, getattr(call, name), (SIZES[name],))
    _check_kind(view, torch.float32, q)
    in_blocks = of != "q" and len(view.shape) == len(BLOCK_DIMS) and view.shape[:2] == of_heads
    if view.shape not in ((), (1,), of_heads) and not in_blocks:
        or_blocks = (
            "" if of == "q" else f", or {shown(BLOCK_DIMS)} for blocks of {DESCALED_KEYS} keys"
        )
        raise UnsupportedError(
            f"{name} has shape {shown(view.shape)}; it must be (batch, heads_k) ="
            f" {shown(of_heads)}, or (1,) for all{or_blocks}"
        )


def _check_blocks(call: Call, k: TensorView) -> None:
    """Check that both k and v have factors for blocks of keys, or none, and enough of them."""
    k_descale, v_descale = call.k_descale, call.v_descale
    if k_descale is None or v_descale is None:
        return
    shapes = tuple(k_descale.shape), tuple(v_descale.shape)
    of_blocks = [shape for shape in shapes if len(shape) == len(BLOCK_DIMS)]
    if not of_blocks:
        return
    if shapes[0] != shapes[1]:
        raise UnsupportedError(
            f"k_descale has shape {shown(shapes[0])}, v_descale {shown(shapes[1])}; factors for"
            " blocks of keys have the same shape: expand the other one, or pass one factor a head"
            " of both"
        )
    keys = k.shape[-3]
    if call.block_table is not None:
        keys *= call.block_table.shape[-1]
    if call.max_seqlen_k is not None:
        keys = int(call.max_seqlen_k) if call.block_table is None else min(keys, call.max_seqlen_k)
    least = -(-keys // DESCALED_KEYS)
    if shapes[0][-1] < least:
        raise UnsupportedError(
            f"k_descale has {shapes[0][-1]} blocks, and a sequence has up to {keys} keys; pass at"
            f" least {least} blocks, one for every {DESCALED_KEYS} keys of a sequence, counted from"
            " its first"
        )


def _check_paging(call: Call) -> None:
    if call.cu_seqlens_k is not None:
        raise UnsupportedError(
            "block_table and cu_seqlens_k are given; keys are in pages or packed, not both: leave"
            " one out, and with block_table pass seqused_k, the number of keys of each sequence"
        )
    if call.seqused_k is None:
        raise UnsupportedError(
            "block_table is given without seqused_k; pass the number of keys of each sequence,"
            " int32 (batch,)"
        )


def _check_table(table: Tensor, q: TensorView, batch: int, page_keys: int) -> None:
    view = TensorView.of("block_table", table)
    _check_kind(view, torch.int32, q)
    if len(view.shape) != 2 or view.shape[0] != batch:
        raise UnsupportedError(
            f"block_table has shape {shown(view.shape)}; it must be (batch = {batch}, pages of the"
            " longest sequence)"
        )
    if view.strides[1] != 1 and view.shape[1] > 1:
        raise UnsupportedError(
            f"the last dimension of block_table has stride {view.strides[1]}; it must be contiguous"
            " (stride 1), copy it with block_table.contiguous()"
        )
    if view.shape[1] * page_keys > MAX_ROWS:
        raise UnsupportedError(
            f"block_table names {view.shape[1]} pages of {page_keys} keys; a sequence has at"
            f" most {MAX_ROWS} keys, pass fewer columns of it"
        )


def _batch(of: str, view: TensorView, cu_seqlens: Tensor | None, q: TensorView) -> int:
    """Count the sequences of q, or of k and v."""
    if cu_seqlens is None:
        return view.shape[0]
    name = f"cu_seqlens_{of}"
    _check_vector(name, cu_seqlens, torch.int32, q)
    if len(cu_seqlens) == 0:
        raise UnsupportedError(
            f"{name} is empty; it holds where the sequences of {of} start and where the last"
            " ends, batch + 1 numbers"
        )
    return len(cu_seqlens) - 1


def _check_max_seqlen(of: str, length: Any) -> None:
    if length is None:
        raise UnsupportedError(
            f"cu_seqlens_{of} is given without max_seqlen_{of}; pass the length of the longest"
            " sequence as an int, it is not read from the device"
        )
    whole = isinstance(length, Integral) and not isinstance(length, bool)
    if not (whole and 0 <= length <= MAX_ROWS):
        raise UnsupportedError(
            f"max_seqlen_{of} is {quoted(length)}; pass the length of the longest sequence as an"
            f" int, at most {MAX_ROWS}"
        )


def _check_vector(
    name: str, tensor: Tensor, dtype: torch.dtype, q: TensorView, size: int | None = None
) -> None:
    """Check that a tensor is a contiguous vector on q's device."""
    view = TensorView.of(name, tensor)
    _check_kind(view, dtype, q)
    if len(view.shape) != 1 or size not in (None, view.shape[0]):
        wanted = SIZES[name] if size is None else f"{SIZES[name]} = {size}"
        raise UnsupportedError(f"{name} has shape {shown(view.shape)}; it must be ({wanted},)")
    if view.strides[0] != 1 and view.shape[0] > 1:
        raise UnsupportedError(
            f"{name} has stride {view.strides[0]}; it must be contiguous (stride 1), copy it with"
            f" {name}.contiguous()"
        )


def _check_kind(view: TensorView, dtype: torch.dtype, q: TensorView) -> None:
    if view.dtype != dtype:
        convert = ".float()" if dtype == torch.float32 else f".to({dtype})"
        raise UnsupportedError(f"{view.name} is {view.dtype}; pass {dtype}, {view.name}{convert}")
    if view.device != q.device:
        raise UnsupportedError(
            f"{view.name} is on {view.device}, q is on {q.device}; move it with"
            f" {view.name}.to(q.device)"
        )
