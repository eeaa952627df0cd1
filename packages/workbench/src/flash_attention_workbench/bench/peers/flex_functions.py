# SPDX-License-Identifier: Apache-2.0
"""The functions of the grid as users of torch's flex_attention write them, and its compiled calls.

Inductor compiles for one shape (dynamic=False), and the block mask is made outside of the timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.functions import KINDS, REACH, SINKS, Drawn

FLEX = "flex"
MOST_CAPTURED = 1 << 31  # elements: beyond that an index of 32 bits reads where it may not

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of q, k and v as (batch, heads, seq, d)."""


def score_mod(function: str, drawn: Drawn) -> Score | None:
    """The score function of the grid's function of this name, if it has one."""
    slopes, table = drawn.slopes, drawn.table
    bias = slopes if drawn.bias is None else drawn.bias

    def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return score - slopes[h] * (q - kv).abs()

    def relative(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return score + table[h, torch.clamp(kv - q, -REACH, REACH) + REACH]

    def additive(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return score + bias[h, q, kv]

    named: dict[str, Score] = {
        "alibi_causal": alibi,
        "alibi_full": alibi,
        "relative_table": relative,
        "additive_bias": additive,
    }
    return named.get(function)


def mask_mod(function: str, drawn: Drawn) -> Mask | None:
    """The mask function of the grid's function of this name, if it has one."""
    prefix, ids, window = drawn.prefix, drawn.ids, drawn.window

    def causal(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return q >= kv

    def prefix_lm(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (q >= kv) | (kv < prefix[b])

    def documents(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (q >= kv) & (ids[b, q] == ids[b, kv])

    def sink_window(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (q >= kv) & ((kv < SINKS) | (q - kv < window))

    def sliding(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (q >= kv) & (q - kv < window)

    named: dict[str, Mask] = {
        "causal": causal,
        "alibi_causal": causal,
        "prefix_lm": prefix_lm,
        "documents": documents,
        "sink_window": sink_window,
        "window": sliding,
    }
    return named.get(function)


def block_mask(function: str, drawn: Drawn) -> BlockMask | None:
    """The blocks that are not empty, as torch finds them; None without a mask."""
    mask = mask_mod(function, drawn)
    if mask is None:
        return None
    batch = len(drawn.prefix) if KINDS[function].differs else None
    seq, device = drawn.seq_len, str(drawn.ids.device)
    return create_block_mask(mask, batch, None, seq, seq, device=device)


def compiled_flex(function: str, drawn: Drawn, *, compiled: bool = True) -> Attend:
    """flex_attention with a function of the grid. It is compiled when it is first called."""
    if drawn.bias is not None and drawn.bias.numel() > MOST_CAPTURED:
        raise UnsupportedError(
            f"flex_attention's kernels index captured tensors with 32 bits, and the bias has"
            f" {drawn.bias.numel():,} elements"
        )
    score, mask = score_mod(function, drawn), block_mask(function, drawn)
    attend: Callable[..., Any] = flex_attention
    if compiled:
        # Each shape is compiled anew: after a few, dynamo would stop compiling and run eagerly.
        torch._dynamo.reset()
        attend = torch.compile(flex_attention, dynamic=False)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attend(q, k, v, score_mod=score, block_mask=mask)
        return out

    return run


@contextmanager
def kept_graphs() -> Iterator[None]:
    """Within, what is compiled may run its backward pass more than once."""
    from torch._functorch import config

    with config.patch(donated_buffer=False):
        yield
