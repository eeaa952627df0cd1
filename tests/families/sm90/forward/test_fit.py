# SPDX-License-Identifier: Apache-2.0
"""What ties a problem to a Hopper config: columns, pages, splits, and the size of a grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.families.fit import MAX_GRID_X
from flash_attention.families.sm90.forward.fit import check_fits
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig

HOPPER = HopperForwardKernelConfig(DType.FP16, 128, 2, 128, 2, tma=True, specialised=True)
PROBLEM = Problem(
    batch=2,
    seq_q=128,
    seq_k=512,
    heads=4,
    heads_k=4,
    d_head=128,
    d_v=128,
    dtype=torch.float16,
    softmax_scale=0.1,
)


def refused(message: str) -> Any:
    return pytest.raises(UnsupportedError, match=message)


def test_what_fits_passes() -> None:
    check_fits(HOPPER, PROBLEM, None)
    check_fits(HOPPER, PROBLEM, KvSplits.of_keys(PROBLEM, 128, 256))
    check_fits(HOPPER, replace(PROBLEM, d_head=40, d_v=8), None)
    check_fits(HOPPER, replace(PROBLEM, total_q=300), None)


def test_the_sides_of_a_grid_have_no_limit_of_their_own() -> None:
    check_fits(HOPPER, replace(PROBLEM, batch=65536), None)
    check_fits(HOPPER, replace(PROBLEM, heads=65536), None)


def test_a_flat_grid_has_a_limit() -> None:
    large = replace(PROBLEM, batch=1 << 15, seq_q=128 << 15, heads=2, heads_k=2)
    with refused(rf"{MAX_GRID_X + 1} tiles of 128 rows of one head; a launch takes at most"):
        check_fits(HOPPER, large, None)
    check_fits(HOPPER, replace(large, heads=1, heads_k=1), None)


def test_every_block_of_a_split_may_be_a_cta() -> None:
    decode = replace(PROBLEM, batch=1 << 15, seq_q=1, seq_k=128 << 14)
    check_fits(HOPPER, decode, None)
    with refused("a launch takes at most"):
        check_fits(HOPPER, decode, KvSplits.of_keys(decode, 128, 128))


def test_without_tma_a_kernel_has_the_columns_of_its_tensors() -> None:
    plain = HopperForwardKernelConfig(DType.FP16, 128, 2, 128, 1)
    check_fits(plain, PROBLEM, None)
    for narrow in (replace(PROBLEM, d_head=64), replace(PROBLEM, d_v=64)):
        with refused("config is for d_head 128, the tensors have d_head 64; pass a config of"):
            check_fits(plain, narrow, None)


@pytest.mark.parametrize("page_keys", [1, 2, 3, 8, 15, 16, 48, 64, 192, 384])
def test_pages_have_any_size(page_keys: int) -> None:
    check_fits(HOPPER, replace(PROBLEM, seqused_k=True, page_keys=page_keys, pages=9), None)


def test_the_keys_of_packed_queries_are_not_split() -> None:
    packed = replace(PROBLEM, total_q=300)
    with refused("split_keys is given with cu_seqlens_q, .* or pass q with a batch dimension"):
        check_fits(HOPPER, packed, KvSplits.of_keys(packed, 128, 256))
