# SPDX-License-Identifier: Apache-2.0
"""`attention` as an implementation in torch's own registry of flash attention.

    from flash_attention.compat.torch import register
    torch.nn.attention.activate_flash_attention_impl(register())

torch 2.11 has the registry. While the implementation is active it computes, on a GPU, what torch
gives to its flash backend: scaled_dot_product_attention, nested tensors, varlen_attn and
varlen_attn_out, forward and backward, also in compiled functions. On the CPU it computes
varlen_attn and varlen_attn_out, for which torch has no kernel there. Which backend
scaled_dot_product_attention takes is torch's choice: torch.nn.attention.sdpa_kernel narrows it.
torch.nn.attention.restore_flash_attention_impl switches back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.attention
from torch import Tensor
from torch.library import Library

from flash_attention.call.call import Keywords
from flash_attention.compat.alibi import biases
from flash_attention.compat.flash_attn import options_of, split_keys
from flash_attention.compat.flash_attn_passes import backward_pass, forward_pass
from flash_attention.errors import UnsupportedError

__all__ = ["NAME", "calls", "register"]

NAME = "flash_attention"
DEVICES = ("CUDA", "CPU")

calls: Counter[str] = Counter()
"""How many calls of each operator of torch were computed here."""


def register(name: str = NAME) -> str:
    """Register this package with torch as a flash attention implementation. Returns the name.

    Nothing changes until `torch.nn.attention.activate_flash_attention_impl(name)`. Raises
    UnsupportedError for a torch without the registry.
    """
    add: Callable[..., None] | None = getattr(
        torch.nn.attention, "register_flash_attention_impl", None
    )
    if add is None:
        raise UnsupportedError(
            f"torch is {torch.__version__}, and torch.nn.attention has no register_flash_attention"
            "_impl; install torch 2.11 or newer, or call flash_attention.compat.sdpa.route_sdpa,"
            " which needs none"
        )
    add(name, register_fn=_Active)
    return name


class _Active:
    """The operators of torch that are computed here, until `remove` is called."""

    def __init__(self) -> None:
        self._library = Library("aten", "IMPL")
        for device in DEVICES:
            for operator, compute in OPERATORS.items():
                self._library.impl(operator, _counted(operator, compute), device)

    def remove(self) -> None:
        self._library._destroy()


def _counted(operator: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        found = compute(*args, **kwargs)
        calls[operator] += 1
        return found

    return counted


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute attention of (batch, seq, heads, d) tensors, of packed ones with `cum_seq_q`, or of
    pages with `block_table`. Returns the output with the strides that torch expects, the
    log-sum-exp, the state of dropout, and two empty tensors."""
    if return_debug_mask:
        raise UnsupportedError(
            "return_debug_mask is True, and probabilities are never stored here; pass False"
        )
    options = _options(scale, is_causal, (window_size_left, window_size_right), dropout_p)
    options |= _lengths(cum_seq_q, cum_seq_k, max_q, max_k)
    if seqused_k is not None:
        options["seqused_k"] = seqused_k
    if block_table is not None:
        options |= {"block_table": block_table, "cu_seqlens_k": None}
    if num_splits is not None:
        options["split_keys"] = split_keys(num_splits, max_k)
    options |= biases(alibi_slopes, query, key, options)
    into = torch.empty_like(query) if out is None else out
    direct = into.stride(-1) == 1
    found, lse, _, state = forward_pass(query, key, value, options, into if direct else None)
    found = found if direct else into.copy_(found)
    states = state.view(torch.uint64), state.new_zeros((), dtype=torch.uint64)
    return found, lse.contiguous(), *states, query.new_empty(0)


def _forward_into(out: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _forward(*args, **kwargs, out=out)[1]


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, ...]:
    options = _options(scale, is_causal, (window_size_left, window_size_right), dropout_p)
    options |= _lengths(cum_seq_q, cum_seq_k, max_q, max_k)
    if dropout_p:
        options["rng_state"] = rng_state.view(torch.int64)
    tensors = (grad_out, query, key, value, out, logsumexp)
    gradients = backward_pass(tensors, options, deterministic=False)[:3]
    return tuple(_with_strides_of(t, g) for t, g in zip(tensors[1:], gradients, strict=False))


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | int | None, ...]:
    """Compute attention of (batch, heads, seq, d) tensors."""
    out = torch.empty_like(query)
    rows = (query.shape[2], key.shape[2])
    q, k, v, into = (t.transpose(1, 2) for t in (query, key, value, out))
    options = (None, None, *rows, dropout_p, is_causal, return_debug_mask)
    _, lse, *states = _forward(q, k, v, *options, scale=scale, out=into)
    return out, lse, None, None, *rows, *states


def _sdpa_backward(*args: Any, scale: float | None = None) -> tuple[Tensor, ...]:
    given: list[Any] = [*(t.transpose(1, 2) for t in args[:5]), args[5], None, None, *args[8:]]
    found = _backward(*given[:14], scale=scale)
    return tuple(gradient.transpose(1, 2) for gradient in found)


OPERATORS: dict[str, Callable[..., Any]] = {
    "_flash_attention_forward": _forward,
    "_flash_attention_forward_no_dropout_inplace": _forward_into,
    "_flash_attention_backward": _backward,
    "_scaled_dot_product_flash_attention": _sdpa,
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
}
"""The operators of aten that are computed here, and by what."""


def _options(
    scale: float | None,
    is_causal: bool,
    window: tuple[int | None, int | None],
    dropout_p: float,
) -> Keywords:
    left, right = (-1 if side is None else side for side in window)
    return options_of(scale, is_causal, (left, right), 0.0, dropout_p)


def _lengths(starts_q: Tensor | None, starts_k: Tensor | None, max_q: int, max_k: int) -> Keywords:
    if starts_q is None:
        return {}
    return {
        "cu_seqlens_q": starts_q,
        "cu_seqlens_k": starts_k,
        "max_seqlen_q": max_q,
        "max_seqlen_k": max_k,
    }


def _with_strides_of(tensor: Tensor, gradient: Tensor | None) -> Tensor:
    """Return a gradient with the strides that torch expects, those of a tensor like this one."""
    assert gradient is not None
    if gradient.stride() == tensor.stride():
        return gradient
    room = torch.empty_like(tensor)
    return gradient if gradient.stride() == room.stride() else room.copy_(gradient)
