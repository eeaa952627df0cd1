# SPDX-License-Identifier: Apache-2.0
"""Calls whose mask function says what a built-in mask says: they have that instead."""

from __future__ import annotations

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.function import Function
from flash_attention.call.options import check_switch


def with_built_in_mask(call: Call) -> Call:
    """Return the call with `causal` or `window` in place of a mask function that describes it. A
    call that torch.compile traces stays as it is."""
    function = call.function
    if not isinstance(function, Function) or torch.compiler.is_dynamo_compiling():
        return call
    mask = function.built_in_mask
    if mask is None or not _is_aligned(call, function):
        return call
    if mask.left is None:
        check_switch("causal", call.causal)
        return call._replace(function=function.score_alone, causal=True)
    if call.window is not None:
        return call
    return call._replace(function=function.score_alone, window=(mask.left, 0))


def _is_aligned(call: Call, function: Function) -> bool:
    """Whether every query is at its own key by the count of functions, as it is by that of built-in
    masks, which are aligned at the last query and the last key. A score function of packed
    sequences keeps its mask, because without it nothing says that distances are not negative."""
    if call.seqused_k is not None or call.block_table is not None:
        return True
    if call.cu_seqlens_q is not None or call.cu_seqlens_k is not None:
        return call.cu_seqlens_q is call.cu_seqlens_k and function.program.score is None
    q, k = call.q, call.k
    dense = isinstance(q, Tensor) and isinstance(k, Tensor) and q.ndim == k.ndim == 4
    if not dense or q.is_nested or k.is_nested:
        return False
    rows_q, rows_k = q.shape[1], k.shape[1]
    return type(rows_q) is type(rows_k) is int and rows_q == rows_k  # others may differ in a graph
