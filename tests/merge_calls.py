# SPDX-License-Identifier: Apache-2.0
"""Parts of attention to merge: random ones, with rows that see no key."""

from __future__ import annotations

import torch

from flash_attention.call.merge_call import MergeCall


def parts_of(
    count: int = 2,
    d: int = 64,
    first: torch.dtype = torch.bfloat16,
    rest: torch.dtype = torch.bfloat16,
    *,
    packed: bool = False,
) -> MergeCall:
    """`count` parts. Row 2 sees no key in the first two parts, whose output is NaN there, row 3
    none in any."""
    torch.manual_seed(count + d)
    shape = (17, 3, d) if packed else (2, 9, 3, d)
    rows = (*shape[:-3], 3, shape[-3])
    exact = torch.float64 if first == torch.float64 else torch.float32
    o, o_rest = torch.randn(shape).to(first), torch.randn(count - 1, *shape).to(rest)
    lse, lse_rest = (5 * torch.randn(n, dtype=exact) for n in (rows, (count - 1, *rows)))
    lse[..., 2:4] = lse_rest[..., 3] = -torch.inf
    o[..., 2, :, :] = torch.nan
    if count > 1:
        lse_rest[0, ..., 2] = -torch.inf
        o_rest[0, ..., 2, :, :] = torch.nan
    return MergeCall(o, lse, o_rest, lse_rest)
