# SPDX-License-Identifier: Apache-2.0
"""MergeCall: how many rows its parts have at most."""

from __future__ import annotations

import pytest
import torch

from flash_attention.call.merge_call import MergeCall, check_merge
from flash_attention.call.tensors import MAX_ROWS
from flash_attention.errors import UnsupportedError


def parts(batch: int, seq: int, heads: int) -> MergeCall:
    """Two parts that share one row of memory."""
    o = torch.zeros(1, 1, 1, 8).expand(batch, seq, heads, 8)
    lse = torch.zeros(1, 1, 1).expand(batch, heads, seq)
    return MergeCall(o, lse, o[None], lse[None])


def test_a_kernel_counts_the_rows_of_all_heads() -> None:
    check_merge(parts(4, MAX_ROWS // 8, 2))
    with pytest.raises(UnsupportedError, match=r"o1 has 1073741832 rows .* merge parts of the ba"):
        check_merge(parts(4, MAX_ROWS // 8 + 1, 2))
