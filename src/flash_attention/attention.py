# SPDX-License-Identifier: Apache-2.0
"""attention: one call, whatever the shapes, the mask and the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor

from flash_attention.call.call import Extras, Keywords, Options, Window, extras_of, options_of
from flash_attention.call.lengths import check_lengths
from flash_attention.forward import run_plan
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch.plan import SELECT, plan_for
from flash_attention.ops import traced
from flash_attention.reference.cpu import attention_on_cpu

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[False] = False,
    out: Tensor | None = None,
    config: KernelConfig | None = None,
    validate: bool = False,
    **keywords: Unpack[Keywords],
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[True],
    out: Tensor | None = None,
    config: KernelConfig | None = None,
    validate: bool = False,
    **keywords: Unpack[Keywords],
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: Window | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    split_keys: int | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    config: KernelConfig | None = None,
    validate: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(softmax_scale q k^T) v.

    q is (batch, seq_q, heads, d), k (batch, seq_k, heads_k, d), v (batch, seq_k, heads_k, d_v);
    neighbouring heads of q share one of k and v. The result is like q with the columns of v, or
    `out`. A query's place ends at the last key: query i sits at key i + seq_k - seq_q. With
    `causal` it sees the keys up to its place, with `window` (left, right) those from left before
    it to right after it, both included; None and -1 are no limit. The scale is 1 / sqrt(d) unless
    given. With `softcap` a score s becomes softcap tanh(s / softcap). `sinks`, float32 (heads,),
    are one more score of every row, with no value.

    With `cu_seqlens_q`, int32 (batch + 1,), q is packed: (total, heads, d), entry i in the rows
    from cu_seqlens_q[i] to cu_seqlens_q[i + 1], and `max_seqlen_q` is the length of the longest;
    the same of k and v. `seqused_k`, int32 (batch,), is how many keys of each entry count. With
    `block_table`, int32 (batch, n), k and v are (pages, page_size, heads_k, d): the table names the
    pages of each entry in order, and seqused_k its keys. The values of all these are trusted on a
    GPU: `validate` checks them, and waits for the GPU to do so.

    With `return_lse` the result is (out, lse), where lse is the logarithm of the sum of
    exponentials of every row, float32 (batch, heads, seq_q), of a packed q (heads, total). A query
    that sees no key has output 0 and lse -inf, or its sink. No gradient is recorded.

    On a GPU a kernel is selected and, at first use, compiled, unless `config` names one, as in
    `forward`. On the CPU torch computes, in float32 at least; with a `config`, the emulator. The
    keys of few queries are split if that fills the GPU; how depends on the batch, and so does the
    rounding. With `split_keys` they are split into chunks of so many, whatever the batch is.
    """
    options = options_of(
        (causal, window, softmax_scale, softcap, return_lse, max_seqlen_q, max_seqlen_k, split_keys)
    )
    extras = extras_of(sinks, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table)
    run = traced if torch.compiler.is_compiling() else compute
    return run(q, k, v, out, options, extras, config, validate)


def compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    options: Options,
    extras: Extras,
    config: KernelConfig | None = None,
    validate: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` of arguments that were put together, on whatever device they are."""
    if config is None and getattr(q, "is_cpu", False):
        result, lse = attention_on_cpu(q, k, v, out, options, extras)
        return result if lse is None else (result, lse)
    chosen = SELECT if config is None else config
    plan = plan_for(chosen, q, k, v, out, options=options, extras=extras)
    if validate:
        check_lengths(plan.problem, extras)
    return run_plan(plan, q, k, v, out, extras)
