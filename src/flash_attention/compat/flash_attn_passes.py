# SPDX-License-Identifier: Apache-2.0
"""The forward and the backward pass of flash-attn 2, which it keeps for itself and others call.

Libraries that divide sequences among GPUs merge the results of several forward passes, and compute
the gradients from what they merged. The parameters are those of `_flash_attn_forward` and its
sisters in flash_attn_interface. Autograd does not record these functions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flash_attention import ops
from flash_attention.attention import with_rng_state
from flash_attention.call.backward_call import ALL, BackwardCall, Gradients, Wanted
from flash_attention.call.call import Call, Keywords
from flash_attention.call.checks import check_dense
from flash_attention.call.options import check_switch
from flash_attention.compat.alibi import biases
from flash_attention.compat.eight_bits import refuse_without_factors
from flash_attention.compat.flash_attn import (
    attend,
    options_of,
    packed_options,
)
from flash_attention.errors import UnsupportedError
from flash_attention.families.readable import backward_call_of
from flash_attention.launch.compute import compute_gradients

__all__ = [
    "flash_attn_backward",
    "flash_attn_forward",
    "flash_attn_varlen_backward",
    "flash_attn_varlen_forward",
]

BLOCK = 128  # rows that softmax_d is padded to

Results = tuple[Tensor, Tensor, Tensor, Tensor]
"""The output, softmax_lse, no probabilities, and the state that dropout follows from, which is zero
without dropout."""


def flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> Results:
    """Compute attention of (batch, seq, heads, d) tensors. softmax_lse is (batch, heads, seq_q)."""
    _refuse("flash_attn_forward", return_softmax, q=q, k=k, v=v)
    window = (window_size_left, window_size_right)
    options = options_of(softmax_scale, causal, window, softcap, dropout_p)
    return forward_pass(q, k, v, options | biases(alibi_slopes, q, k, options))


def flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
) -> Results:
    """Compute attention of packed sequences, (total, heads, d). softmax_lse is (heads, total_q).

    `seqused_k`, int32 (batch,), are the numbers of keys that are used. With `block_table` k and v
    are a paged KV cache.
    """
    _refuse("flash_attn_varlen_forward", return_softmax, q=q, k=k, v=v)
    if leftpad_k is not None:
        raise UnsupportedError(
            "leftpad_k is given, and packed keys have no padding here; call"
            " flash_attn_with_kvcache with cache_leftpad"
        )
    _refuse_zeros(zero_tensors)
    window = (window_size_left, window_size_right)
    options = options_of(softmax_scale, causal, window, softcap, dropout_p)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    options |= packed_options(k, *lengths, block_table)
    if seqused_k is not None:
        options["seqused_k"] = seqused_k
    return forward_pass(q, k, v, options | biases(alibi_slopes, q, k, options))


def flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:
    """Store the gradients of `flash_attn_forward` in `dq`, `dk` and `dv`, those that are given.

    `out` and `softmax_lse` may be the results over all keys, of which k and v are some. The
    gradients are then those of these keys, and dq is a part of the gradient of q. With dropout,
    `rng_state` is that of the forward pass.

    Returns softmax_d, float32 (batch, heads, rows), the sum of dout out in each row. It is padded
    with zeros to a multiple of 128 rows.
    """
    _refuse("flash_attn_backward", q=q, k=k, v=v)
    window = (window_size_left, window_size_right)
    options = options_of(softmax_scale, causal, window, softcap, dropout_p)
    options |= _state_of(dropout_p, rng_state) | biases(alibi_slopes, q, k, options)
    tensors, into = (dout, q, k, v, out, softmax_lse), (dq, dk, dv)
    sums = store_gradients(tensors, into, options, deterministic)
    return torch.nn.functional.pad(sums, (0, -sums.shape[-1] % BLOCK))


def flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """Store the gradients of `flash_attn_varlen_forward`, as `flash_attn_backward` does.

    Returns softmax_d, float32 (heads, total_q + 128 batch), in which 128 rows follow each sequence.
    """
    _refuse("flash_attn_varlen_backward", q=q, k=k, v=v)
    _refuse_zeros(zero_tensors)
    window = (window_size_left, window_size_right)
    options = options_of(softmax_scale, causal, window, softcap, dropout_p)
    options |= _state_of(dropout_p, rng_state)
    options |= packed_options(k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, None)
    options |= biases(alibi_slopes, q, k, options)
    tensors, into = (dout, q, k, v, out, softmax_lse), (dq, dk, dv)
    sums = store_gradients(tensors, into, options, deterministic)
    heads, total = sums.shape
    rows = torch.arange(total, device=sums.device)
    sequence = torch.searchsorted(cu_seqlens_q[1:].contiguous(), rows, right=True)
    padded = sums.new_zeros((heads, total + BLOCK * (len(cu_seqlens_q) - 1)))
    return padded.index_copy(1, rows + BLOCK * sequence, sums)


def forward_pass(
    q: Tensor, k: Tensor, v: Tensor, options: Keywords, into: Tensor | None = None
) -> Results:
    """Compute a forward pass that autograd does not record, if `into` is given into that."""
    check_dense("q", q)
    with torch.no_grad():
        if options["dropout_p"]:
            options["rng_state"] = with_rng_state(Call(q, k, v, **options)).rng_state
        out, lse = attend(q, k, v, options, return_lse=True, into=into)
    assert lse is not None
    state = options.get("rng_state")
    if state is None:
        state = torch.zeros(2, dtype=torch.int64, device=q.device)
    return out, lse, q.new_empty(0), state


def _state_of(dropout_p: float, rng_state: Tensor | None) -> Keywords:
    """Return the state that dropout follows from. Without dropout it is not read."""
    return {"rng_state": rng_state} if dropout_p else {}


def store_gradients(
    tensors: tuple[Tensor, ...],
    into: tuple[Tensor | None, ...],
    options: Keywords,
    deterministic: bool,
) -> Tensor:
    """Store gradients, and return the sum of dout out in each row."""
    _check_dense(tensors)
    _check_room(tensors[1:4], into)
    wanted = Wanted(*(t is not None for t in into))
    found = backward_pass(tensors, options, deterministic, wanted)
    dout, out = tensors[0], tensors[4]
    with torch.no_grad():
        for room, gradient in zip(into, found, strict=False):
            if room is not None and gradient is not None:
                room.copy_(gradient)
        return (dout.float() * out.float()).sum(-1).transpose(-1, -2)


def backward_pass(
    tensors: tuple[Tensor, ...],
    options: Keywords,
    deterministic: bool,
    wanted: Wanted = ALL,
) -> Gradients:
    """Compute the gradients of dout, q, k, v, out and softmax_lse."""
    check_switch("deterministic", deterministic)
    _check_dense(tensors)
    dout, q, k, v, out = (t if t.stride(-1) == 1 else t.contiguous() for t in tensors[:5])
    call, lse = Call(q, k, v, out, **options), tensors[5].contiguous()
    with torch.no_grad():
        if ops.is_traced(q, k, v):
            asked = BackwardCall(dout, call, lse, None, wanted, deterministic)
            return ops.traced_gradients(asked, None)
        return compute_gradients(backward_call_of(dout, call, lse, None, wanted, deterministic))


def _check_dense(tensors: tuple[Tensor, ...]) -> None:
    for name, tensor in zip(("dout", "q", "k", "v", "out", "softmax_lse"), tensors, strict=True):
        check_dense(name, tensor)


def _check_room(tensors: tuple[Tensor, ...], into: tuple[Tensor | None, ...]) -> None:
    for name, tensor, room in zip("qkv", tensors, into, strict=True):
        if room is None:
            continue
        check_dense(f"d{name}", room)
        if (room.shape, room.dtype, room.device) != (tensor.shape, tensor.dtype, tensor.device):
            raise UnsupportedError(
                f"d{name} has shape {tuple(room.shape)} and is {room.dtype} on {room.device}; it"
                f" must be like {name}, {tuple(tensor.shape)}, {tensor.dtype} on {tensor.device}"
            )


def _refuse(
    function: str,
    return_softmax: bool = False,
    **tensors: Tensor,
) -> None:
    refuse_without_factors(f"_{function}", "flash_attention.attention", **tensors)
    if return_softmax:
        raise UnsupportedError(
            "return_softmax is True, and probabilities are never stored here; pass False, and call"
            " flash_attention.dropout_mask to see which of them were dropped"
        )


def _refuse_zeros(zero_tensors: bool) -> None:
    if zero_tensors:
        raise UnsupportedError(
            "zero_tensors is True, and every row of a sequence is stored here; pass False"
        )
