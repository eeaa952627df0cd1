# SPDX-License-Identifier: Apache-2.0
"""attention: one call, whatever the shapes, the mask and the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from torch import Tensor

from flash_attention import ops
from flash_attention.call.call import Call, Keywords, call_of, with_keywords
from flash_attention.call.options import check_switch
from flash_attention.errors import UnsupportedError
from flash_attention.families.given import GivenConfig
from flash_attention.launch.compute import compute

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
    config: GivenConfig | None = None,
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
    config: GivenConfig | None = None,
    validate: bool = False,
    **keywords: Unpack[Keywords],
) -> tuple[Tensor, Tensor]: ...


@with_keywords
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    out: Tensor | None = None,
    config: GivenConfig | None = None,
    validate: bool = False,
    **keywords: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(softmax_scale q k^T) v.

    q is (batch, seq_q, heads, d), k (batch, seq_k, heads_k, d), v (batch, seq_k, heads_k, d_v);
    neighbouring heads of q share one of k and v. The result is like q with the columns of v, or
    `out`. Queries are aligned with the end of the keys: query i sits at key i + seq_k - seq_q. With
    `causal` it sees the keys up to that one, with `window` (left, right) those from left before it
    to right after it, both included; None and -1 are no limit. The scale is 1 / sqrt(d) unless
    given. With `softcap` a score s becomes softcap tanh(s / softcap). `sinks`, float32 (heads,),
    are logits that are added to the softmax denominator of every row of a head.

    With `cu_seqlens_q`, int32 (batch + 1,), q is packed: (total, heads, d), sequence i in the rows
    from cu_seqlens_q[i] to cu_seqlens_q[i + 1], and `max_seqlen_q` is the length of the longest;
    the same of k and v. `seqused_k`, int32 (batch,), is how many keys of each sequence count. With
    `block_table`, int32 (batch, n), k and v are (pages, page_size, heads_k, d): the table names the
    pages of each sequence in order, and seqused_k its keys. The values of all these are trusted on
    a GPU: `validate` checks them, and waits for the GPU to do so.

    With `return_lse` the result is (out, lse), where lse is the logarithm of the sum of
    exponentials of every row, float32 (batch, heads, seq_q), of a packed q (heads, total). A query
    that sees no key has output 0 and lse -inf, or its sink. No gradient is recorded.

    On a GPU a kernel is selected and, at first use, compiled, unless `config` names one, as in
    `forward`. On the CPU torch computes, in float32 at least; with a `config`, the emulator. The
    keys of few queries are split if that fills the GPU; how depends on the batch, and so does the
    rounding. With `split_keys` they are split into chunks of so many, whatever the batch is.
    """
    if ops.is_traced(q, k, v):
        return ops.traced(q, k, v, out, config, validate, keywords)
    call = call_of("attention", q, k, v, out, keywords)
    try:
        return compute(call, config, validate)
    except (RuntimeError, UnsupportedError):
        if not ops.lacks_memory(q, k, v):
            raise
    return ops.traced(q, k, v, out, config, validate, keywords)


def asked(
    function: str, q: Tensor, k: Tensor, v: Tensor, keywords: dict[str, Any]
) -> tuple[Call, GivenConfig | None, bool]:
    """The call, the config and whether to validate, for a function that takes what `attention`
    takes."""
    own = dict(keywords)
    out, config = own.pop("out", None), own.pop("config", None)
    validate = own.pop("validate", False)
    check_switch("validate", validate)
    return call_of(function, q, k, v, out, own), config, bool(validate)
