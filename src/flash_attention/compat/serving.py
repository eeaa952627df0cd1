# SPDX-License-Identifier: Apache-2.0
"""One step of a serving engine: packed queries over a paged KV cache, or over packed keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flash_attention.call.call import Keywords
from flash_attention.call.checks import check_dense
from flash_attention.call.results import E4M3
from flash_attention.compat.alibi import biases
from flash_attention.compat.flash_attn import NO_WINDOW, attend, options_of, split_keys, whole
from flash_attention.compat.flash_attn_3 import descales_of
from flash_attention.errors import UnsupportedError


class Step(NamedTuple):
    """Which rows and keys a step has. Queries are packed with `cu_seqlens_q`, else dense. Keys are
    pages of `block_table`, else packed."""

    cu_seqlens_q: Tensor | None
    max_seqlen_q: int | None
    cu_seqlens_k: Tensor | None = None
    max_seqlen_k: int | None = None
    seqused_k: Tensor | None = None
    block_table: Tensor | None = None


class Options(NamedTuple):
    """What else an engine says about a step, in the words of its function."""

    softmax_scale: float | None = None
    causal: bool = False
    window_size: Sequence[int] | None = None
    softcap: float | None = 0.0
    sinks: Tensor | None = None
    alibi_slopes: Tensor | None = None
    descales: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
    num_splits: int = 0  # 1 does not split keys, so that rows do not depend on other sequences


def compute_step(
    q: Tensor, k: Tensor, v: Tensor, step: Step, options: Options, out: Tensor | None, lse: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute the output, in `out` if that is given, and with `lse` the log-sum-exp: of packed
    queries (heads, rows), of dense ones (batch, heads, seq_q).

    Engines pass descale factors with 16-bit tensors too, which do not need them, and leave out
    those that are 1. They pass an upper bound of splits, of which as many are made as fill the GPU.
    """
    for name, tensor in (("q", q), ("k", k)):
        check_dense(name, tensor)
    window: Any = options.window_size
    window = NO_WINDOW if window is None else tuple(window)
    scale, softcap = options.softmax_scale, options.softcap or 0.0
    keywords: Keywords = options_of(scale, options.causal, window, softcap)
    if step.cu_seqlens_q is not None:
        keywords |= {"cu_seqlens_q": step.cu_seqlens_q, "max_seqlen_q": whole(step.max_seqlen_q)}
    keywords |= _keys(step)
    if options.sinks is not None:
        keywords["sinks"] = options.sinks.float()
    if options.num_splits == 1:
        keywords["split_keys"] = split_keys(1, whole(step.max_seqlen_k) or _room(k, step))
    if k.dtype == E4M3:
        of_q, of_k, of_v = options.descales
        keywords |= descales_of(q, k, of_q if q.dtype == E4M3 else None, of_k, of_v)
    keywords |= biases(options.alibi_slopes, q, k, keywords)
    return attend(q, k, v, keywords, lse, into=out)


def _keys(step: Step) -> Keywords:
    longest: Keywords = {"max_seqlen_k": whole(step.max_seqlen_k)}
    if step.block_table is not None:
        if step.seqused_k is None:
            raise UnsupportedError("block_table is given without seqused_k; pass both")
        return longest | {"block_table": step.block_table, "seqused_k": step.seqused_k}
    if step.cu_seqlens_k is None:
        raise UnsupportedError(
            "cu_seqlens_k is missing, and so is a table of pages; pass one of them, as keys are"
            " packed or paged"
        )
    packed = longest | {"cu_seqlens_k": step.cu_seqlens_k}
    return packed if step.seqused_k is None else packed | {"seqused_k": step.seqused_k}


def _room(k: Tensor, step: Step) -> int:
    return k.shape[0] if step.block_table is None else k.shape[1] * step.block_table.shape[1]


def get_scheduler_metadata(*sizes: Any, cache_seqlens: Tensor, **options: Any) -> Tensor:
    """Return an empty tensor: kernels schedule their tiles themselves."""
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)
