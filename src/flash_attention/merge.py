# SPDX-License-Identifier: Apache-2.0
"""merge: results of attention over parts of the keys become the result over all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.checks import check_dense
from flash_attention.call.merge_call import DIMS, LSE_DIMS, MergeCall, check_merge
from flash_attention.errors import UnsupportedError
from flash_attention.launch.merge import merge_by_kernel
from flash_attention.ops import is_traced, lacks_memory
from flash_attention.program.tangent import has_tangent
from flash_attention.reference.merge import merge_gradients, merge_with_torch


def merge(
    o1: Tensor, lse1: Tensor, o2: Tensor | None = None, lse2: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Merge results of `attention` over the same queries and different keys.

    - `o1`, `lse1`: the output, (batch, seq_q, heads, d) or packed (total, heads, d), and the
      log-sum-exp that `attention` returns with `return_lse`. The output may be float32.
    - `o2`, `lse2`: the same over other keys. Without them `o1` and `lse1` are stacked parts: they
      have one more dimension, the first, along which all parts are merged in order.

    Returns (o, lse), what attention over all the keys would give: o in the dtype of the parts, or
    float32 if one of two parts is, and lse in float32. The arithmetic is in float32. A row that
    sees no key in a part, with lse -inf, takes nothing from it, and one that sees none at all has
    output 0 and lse -inf. Keys must not be in two parts, and a sink only in one. The function is
    differentiable in all tensors.

    Raises UnsupportedError for parts that do not belong together.
    """
    if (o2 is None) != (lse2 is None):
        given, missing = ("lse2", "o2") if o2 is None else ("o2", "lse2")
        raise UnsupportedError(
            f"{given} is given without {missing}; pass both, or neither for stacked parts"
        )
    call = _stacked(o1, lse1) if o2 is None or lse2 is None else _pair(o1, lse1, o2, lse2)
    return merged(call)


def merged(call: MergeCall, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Check parts and merge them into an output of a dtype, by default that of the parts."""
    check_merge(call)
    o, rest, dtype = call.o, call.o_rest, dtype or call.dtype()
    on_gpu = o.is_cuda and torch.float64 not in (o.dtype, dtype)
    if (
        not on_gpu
        or is_traced(o, call.lse, rest)
        or lacks_memory(o, call.lse, rest)
        or any(map(has_tangent, call))
    ):
        return merge_with_torch(call, dtype)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call):
        record: Callable[..., tuple[Tensor, Tensor]] = _Merge.apply
        return record(dtype, *call)
    return merge_by_kernel(call, dtype)


def _pair(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> MergeCall:
    check_dense("o2", o2, DIMS)
    check_dense("lse2", lse2, LSE_DIMS)
    return MergeCall(o1, lse1, o2[None], lse2[None])


def _stacked(outs: Tensor, lses: Tensor) -> MergeCall:
    check_dense("o1", outs, ("parts", *DIMS))
    check_dense("lse1", lses, ("parts", *LSE_DIMS))
    if outs.ndim not in (4, 5) or lses.ndim != outs.ndim - 1 or not len(outs) == len(lses) > 0:
        raise UnsupportedError(
            f"o1 has shape {tuple(outs.shape)}, lse1 {tuple(lses.shape)}, and there is no o2;"
            " stacked parts are (parts, batch, seq, heads, d) and (parts, batch, heads, seq), at"
            " least one"
        )
    return MergeCall(outs[0], lses[0], outs[1:], lses[1:])


class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *parts: Tensor) -> tuple[Tensor, Tensor]:
        result = merge_by_kernel(MergeCall(*parts), dtype)
        ctx.save_for_backward(*parts, *result)
        return result

    @staticmethod
    def backward(ctx: Any, do: Tensor, dlse: Tensor) -> tuple[Tensor | None, ...]:
        *parts, o, lse = ctx.saved_tensors
        return None, *merge_gradients(MergeCall(*parts), (o, lse), do, dlse)
