# SPDX-License-Identifier: Apache-2.0
"""flash-attn's `alibi_slopes` as a score function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flash_attention.call.call import Keywords
from flash_attention.call.checks import check_dense
from flash_attention.call.function import Function
from flash_attention.errors import UnsupportedError, one
from flash_attention.scores import alibi


def biases(alibi_slopes: Tensor | None, q: Tensor, k: Tensor | None, options: Keywords) -> Keywords:
    """Convert slopes to keywords of `attention`. The bias of query i and key j is -slope |i +
    seq_k - seq_q - j|. `options` has the lengths of packed sequences, and k is None if it is in a
    KV cache. As in flash-attn, slopes have no gradient."""
    if alibi_slopes is None:
        return {}
    check_dense("q", q)
    starts = options.get("cu_seqlens_q")
    if starts is not None:
        check_dense("cu_seqlens_q", starts, ("batch + 1",))
    _check(alibi_slopes, q, len(q) if starts is None else len(starts) - 1)
    subtract, ahead = alibi(alibi_slopes.detach()), _ahead(q, k, options)

    def change(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        shift = ahead[batch] if isinstance(ahead, Tensor) else ahead
        return subtract(score, batch, head, query + shift, key)

    return {"function": Function(score=change)}


def _ahead(q: Tensor, k: Tensor | None, options: Keywords) -> int | Tensor:
    """Return the key that the first query is aligned with, of each sequence if they are packed. Of
    a cache, functions count queries from its first key on."""
    if k is None or options.get("seqused_k") is not None:
        return 0
    starts_q, starts_k = options.get("cu_seqlens_q"), options.get("cu_seqlens_k")
    if starts_q is not None and starts_k is not None:
        check_dense("cu_seqlens_k", starts_k, ("batch + 1",))
        return starts_k.diff() - starts_q.diff()
    check_dense("k", k)
    return k.shape[1] - q.shape[1] if q.ndim == k.ndim == 4 else 0


def _check(slopes: object, q: Tensor, batch: int) -> None:
    heads = q.shape[-2] if q.ndim > 1 else 0
    wanted = f"pass a torch.float32 tensor of shape (heads,) = ({heads},) or (batch, heads) ="
    wanted += f" ({batch}, {heads}) on {q.device}"
    if not isinstance(slopes, Tensor):
        raise UnsupportedError(f"alibi_slopes is {one(type(slopes).__name__)}; {wanted}")
    if slopes.dtype != torch.float32 or tuple(slopes.shape) not in ((heads,), (batch, heads)):
        raise UnsupportedError(
            f"alibi_slopes has shape {tuple(slopes.shape)} and is {slopes.dtype}; {wanted}"
        )
    if slopes.device != q.device:
        raise UnsupportedError(f"alibi_slopes is on {slopes.device}; {wanted}")
