# SPDX-License-Identifier: Apache-2.0
"""torch's flex_attention, computed by this package.

`create_block_mask`, `and_masks`, `or_masks` and the classes are torch's own, in
torch.nn.attention.flex_attention. Tensors are (batch, heads, seq, d). Nothing has to be compiled
with torch.compile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from flash_attention.attention import attention
from flash_attention.call.checks import check_dense
from flash_attention.call.function import Function
from flash_attention.call.options import check_softmax_scale, check_switch
from flash_attention.compat.block_masks import BlockMaskLists, check_block_mask, listed_mask
from flash_attention.compat.sdpa import autocast, no_kernel
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.program.trace import MaskFunction, ScoreFunction

if TYPE_CHECKING:  # importing it takes seconds, as it imports torch's compiler
    from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask

__all__ = ["flex_attention"]

TUNING = {
    *("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2"),
    *("num_warps", "num_stages", "kpack", "matrix_instr_nonkdim", "waves_per_eu"),
    *("PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS", "WRITE_DQ", "USE_TMA"),
    "FORCE_USE_FLEX_ATTENTION",
}
"""The kernel options that say how torch's kernels compute, not what."""

_known: WeakKeyDictionary[Any, BlockMaskLists] = WeakKeyDictionary()  # by block mask


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreFunction | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, AuxOutput]:
    """Compute torch's function of this name, with the same arguments.

    - `score_mod`: f(score, batch, head, query, key), as `score` of `attention`.
    - `block_mask`: a BlockMask of torch. Its `mask_mod` decides, as `mask` of `attention` does.
      Where the lists of blocks say otherwise, they count as in torch's kernels: a query sees no key
      of a block that is not listed, and every key of a full one. The first call with a block mask
      finds that out, and waits for the GPU. In a compiled function the lists always decide.
    - `kernel_options`: options that tune torch's kernels are ignored, others refused.

    Under torch.autocast tensors are cast as torch casts them. A query that sees no key has output 0
    and lse -inf. Returns the output, which need not be contiguous; with `return_lse` (output, lse),
    and with `return_aux` (output, AuxOutput), where lse is the natural logarithm, (batch, heads,
    seq_q). The results are differentiable in query, key and value. Raises UnsupportedError for
    max_scores of `return_aux`, and for everything that `attention` does not support.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_dense(name, tensor, ("batch", "heads", "seq", "d"))
    check_switch("enable_gqa", enable_gqa)
    check_softmax_scale(scale, "scale")
    _check_kernel_options(kernel_options)
    with_lse = _asks_for_lse(return_lse, return_aux)
    query, key, value = autocast(query, key, value)
    if not query.ndim == key.ndim == value.ndim == 4:
        shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
        raise UnsupportedError(
            f"query, key and value have shapes {shapes}; allowed is (batch, heads, seq, d)"
        )
    if block_mask is not None and key.shape[0] == value.shape[0] == 1 < query.shape[0]:
        key, value = (t.expand(query.shape[0], -1, -1, -1).contiguous() for t in (key, value))
    if reason := no_kernel((query, key, value), None, enable_gqa):
        raise UnsupportedError(reason)
    mask = None if block_mask is None else _mask_of(block_mask, query, key)
    function = None if score_mod is None and mask is None else Function(score_mod, mask)
    tensors = (t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value))
    q, k, v = (t.transpose(1, 2) for t in tensors)
    if not with_lse:
        out = attention(q, k, v, softmax_scale=scale, function=function)
        return _results(out.transpose(1, 2), None, return_aux)
    out, lse = attention(q, k, v, softmax_scale=scale, function=function, return_lse=True)
    return _results(out.transpose(1, 2), lse, return_aux)


def _mask_of(block_mask: BlockMask, query: Tensor, key: Tensor) -> MaskFunction | None:
    """Return the mask function of a block mask, or None if it hides nothing."""
    check_block_mask(block_mask, query, key)
    lengths = query.shape[2], key.shape[2]
    if 0 in lengths:
        return None
    if torch.compiler.is_dynamo_compiling():
        return listed_mask(block_mask, *lengths)
    lists = _known.get(block_mask)
    if lists is None or not lists.are_those_of(block_mask, *lengths):
        lists = _known[block_mask] = BlockMaskLists(block_mask, *lengths)
    return lists.mask


def _results(
    out: Tensor, lse: Tensor | None, return_aux: AuxRequest | None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, AuxOutput]:
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return out, AuxOutput(lse=lse)
    return out if lse is None else (out, lse)


def _asks_for_lse(return_lse: bool, return_aux: AuxRequest | None) -> bool:
    check_switch("return_lse", return_lse)
    if return_aux is None:
        return bool(return_lse)
    if return_lse:
        raise UnsupportedError("return_lse and return_aux are given; pass one of the two")
    if return_aux.max_scores:
        raise UnsupportedError(
            "return_aux asks for max_scores, and kernels do not return the largest score of a row;"
            " pass AuxRequest(lse=True)"
        )
    return return_aux.lse


def _check_kernel_options(given: dict[str, Any] | None) -> None:
    for name, value in (given or {}).items():
        if name == "BACKEND" and value == "AUTO":
            continue
        if name.removeprefix("fwd_").removeprefix("bwd_") not in TUNING:
            raise UnsupportedError(
                f"kernel_options has {name}={quoted(value)}, which is no number that tunes torch's"
                " kernels; leave it out"
            )
