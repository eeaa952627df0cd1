# SPDX-License-Identifier: Apache-2.0
"""The function of flash-attn's extension flash_attn_2_cuda that Transformer Engine imports."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from flash_attention.compat.flash_attn_passes import flash_attn_varlen_backward
from flash_attention.errors import UnsupportedError

__all__ = ["varlen_bwd"]


def varlen_bwd(
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
    alibi_slopes: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    deterministic: bool,
    gen: Generator | None,
    rng_state: Tensor | None,
) -> list[Tensor]:
    """Compute `flash_attn_varlen_backward` of `compat.flash_attn_passes`. Returns the gradients of
    q, k and v, in `dq`, `dk` and `dv` as far as they are given, and softmax_d."""
    if gen is not None:
        raise UnsupportedError(
            "gen is given, and dropout of a backward pass follows from rng_state here; pass that"
            " of the forward pass, and None for gen"
        )
    dq, dk, dv = (torch.empty_like(t) if d is None else d for t, d in ((q, dq), (k, dk), (v, dv)))
    softmax_d = flash_attn_varlen_backward(
        *(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q),
        *(max_seqlen_k, p_dropout, softmax_scale, is_causal, window_size_left, window_size_right),
        *(softcap, alibi_slopes, deterministic, rng_state, zero_tensors),
    )
    return [dq, dk, dv, softmax_d]
