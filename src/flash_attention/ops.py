# SPDX-License-Identifier: Apache-2.0
"""`attention` as operators of torch, so that torch.compile and torch.export see one node.

`torch.ops.flash_attention.dense` takes (batch, seq, heads, d) tensors,
`torch.ops.flash_attention.varlen` packed ones. Both return (out, lse) in new, contiguous tensors
and change nothing. A side of the window that is -1 has no limit. `config` is the short form of a
kernel config, or None to have one selected.

`attention` calls them while it is traced; called outside of a compiled function, it does without
them and what they cost.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flash_attention.call.call import Extras, Options
from flash_attention.call.tensors import check_no_grad
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import KernelConfig, parse_kernel_config


@torch.library.custom_op("flash_attention::dense", mutates_args=())
def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    seqused_k: Tensor | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    config: str | None = None,
    block_table: Tensor | None = None,
    split_keys: int | None = None,
) -> tuple[Tensor, Tensor]:
    window = (window_left, window_right)
    options = Options(causal, window, softmax_scale, softcap, True, split_keys=split_keys)
    extras = Extras(sinks, seqused_k=seqused_k, block_table=block_table)
    return _compute(q, k, v, config, options, extras)


@torch.library.custom_op("flash_attention::varlen", mutates_args=())
def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    sinks: Tensor | None = None,
    seqused_k: Tensor | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    config: str | None = None,
    block_table: Tensor | None = None,
    split_keys: int | None = None,
) -> tuple[Tensor, Tensor]:
    window, limits = (window_left, window_right), (max_seqlen_q, max_seqlen_k, split_keys)
    options = Options(causal, window, softmax_scale, softcap, True, *limits)
    extras = Extras(sinks, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table)
    return _compute(q, k, v, config, options, extras)


@dense.register_fake
@varlen.register_fake
def _unknown(q: Tensor, k: Tensor, v: Tensor, *asked: object) -> tuple[Tensor, Tensor]:
    """Results without values; lse is (batch, heads, seq_q), of packed queries (heads, total)."""
    *batch, rows, heads, _ = q.shape
    return _room(q, v), q.new_empty((*batch, heads, rows), dtype=torch.float32)


def _room(q: Tensor, v: Tensor) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _compute(
    q: Tensor, k: Tensor, v: Tensor, config: str | None, options: Options, extras: Extras
) -> tuple[Tensor, Tensor]:
    from flash_attention.attention import compute  # it imports this module

    chosen = None if config is None else parse_kernel_config(config)
    result, lse = compute(q, k, v, _room(q, v), options, extras, chosen)
    return result, lse


def traced(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    options: Options,
    extras: Extras,
    config: KernelConfig | None,
    validate: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` as a call of an operator: what a compiler of torch traces."""
    if validate:
        raise UnsupportedError(
            "validate=True reads values of cu_seqlens, seqused_k and block_table, which have none"
            " while a function is compiled; validate outside of it"
        )
    inputs = (q, k, v) if extras.sinks is None else (q, k, v, extras.sinks)
    check_no_grad(any(tensor.requires_grad for tensor in inputs))
    left, right = (-1 if n is None else n for n in options.window or (-1, -1))
    asked = (
        *(extras.sinks, extras.seqused_k, options.causal, left, right),
        *(options.softmax_scale, options.softcap),
        None if config is None else config.short_form(),
        *(extras.block_table, options.split_keys),
    )
    longest = (options.max_seqlen_q, options.max_seqlen_k)
    packed = (extras.cu_seqlens_q, extras.cu_seqlens_k, *longest)
    if any(value is not None for value in packed):
        result, lse = varlen(q, k, v, *packed, *asked)
    else:
        result, lse = dense(q, k, v, *asked)
    if out is not None:
        result = out.copy_(result)
    return (result, lse) if options.return_lse else result
