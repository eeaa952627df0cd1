# SPDX-License-Identifier: Apache-2.0
"""torch's flex_attention, compiled by Inductor to Triton for one shape and mask."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.peers.torch_sdpa import needs_cuda
from flash_attention_workbench.bench.timing import Contender

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def flex(name: str, case: Case) -> Contender:
    """Any of the masks; packed entries are documents of one long sequence."""
    needs_cuda(case)
    packed = case.starts is not None
    queries, keys, values = (
        (tensor[None] if packed else tensor).transpose(1, 2) for tensor in (case.q, case.k, case.v)
    )
    # Each shape is compiled anew: after a few, dynamo would stop compiling and run eagerly.
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    mask = block_mask(case)
    shared = case.point.kv_heads != case.point.heads

    def run() -> Tensor:
        out: Tensor = compiled(queries, keys, values, block_mask=mask, enable_gqa=shared)
        out = out.transpose(1, 2)
        return out[0] if packed else out

    return Contender(name, run)


def block_mask(case: Case) -> BlockMask | None:
    """The blocks of keys that each block of queries sees; None where all do."""
    mask = mask_of(case)
    if mask is None:
        return None
    rows_q, rows_k = case.q.shape[-3], case.k.shape[-3]
    return create_block_mask(mask, None, None, rows_q, rows_k, device=str(case.q.device))


def mask_of(case: Case) -> Mask | None:
    """Whether query i sees key j, as flex_attention asks; None: always."""
    point = case.point
    if not point.causal and not point.lengths:
        return None
    ahead = 0 if point.lengths else point.seq_len - point.queries
    documents = torch.repeat_interleave(
        torch.arange(len(point.lengths), device=case.q.device),
        torch.tensor(point.lengths, dtype=torch.int64, device=case.q.device),
    )

    def sees(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = i + ahead >= j if point.causal else i + ahead >= i
        if point.window:
            seen = seen & (i + ahead - j < point.window)
        if point.lengths:
            seen = seen & (documents[i] == documents[j])
        return seen

    return sees
