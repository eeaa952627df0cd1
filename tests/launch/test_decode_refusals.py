# SPDX-License-Identifier: Apache-2.0
"""Splits, pages and lengths that no kernel takes are refused before anything is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention, forward
from flash_attention.errors import UnsupportedError
from flash_attention.families.sm90.forward.features import Sm90Features
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import generate_qkv
from tests.feature_cases import Case

CONFIG = HopperForwardKernelConfig(DType.BF16, 64, 1, 64, 2, tma=True, specialised=True)
PACKED = replace(CONFIG, tile_order=TileOrder.DYNAMIC, group_mib=16)

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"split_keys": 100}, r"split_keys is 100.*blocks of 64; pass a multiple, 128 is the next"),
    ({"split_keys": 0}, "split_keys is 0; pass how many keys a split has"),
    ({"split_keys": 64.0}, r"split_keys is 64\.0"),
    ({"config": replace(CONFIG, B_c=80), "split_keys": 64}, "in blocks of 80; pass a multiple, 80"),
    (
        {"config": HopperForwardKernelConfig(DType.BF16, 64, 1, 64, 1, tma=True), "split_keys": 64},
        "split_keys is asked for.*specialised=True",
    ),
    ({"config": PACKED, "split_keys": 64}, "split_keys is given, and tile_order of the config"),
    (
        {"config": replace(CONFIG, own_output=True), "split_keys": 64},
        "split_keys is given, and own_output of the config would change nothing",
    ),
]


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_splits_that_no_kernel_takes_are_refused(change: dict[str, Any], message: str) -> None:
    q, k, v = generate_qkv(2, 1, 4, 64, DType.BF16, seq_len_k=300, n_heads_k=2)
    with pytest.raises(UnsupportedError, match=message):
        attention(q, k, v, **{"config": CONFIG, **change})


@pytest.mark.usefixtures("no_compile")
def test_the_keys_of_packed_queries_are_not_split_by_a_given_config() -> None:
    call = Case("", (1, 2), (10, 20)).make()
    with pytest.raises(UnsupportedError, match="leave split_keys out"):
        forward(CONFIG, call.q, call.k, call.v, split_keys=64, **call.arguments)


@pytest.mark.usefixtures("no_compile")
def test_sequences_of_their_own_lengths_are_not_computed_in_turn() -> None:
    config = replace(CONFIG, tile_order=TileOrder.PERSISTENT)
    message = r"a length of its own .* tile_order=TileOrder\.PERSISTENT: pass one with"
    many = Case("", 33, 50, heads=4, heads_k=2, batch=2, used=(5, 20))
    for case in (Case("", (1, 2), (10, 20)), many):
        call = case.make()
        for given in (config, replace(config, own_output=True)):
            with pytest.raises(UnsupportedError, match=message):
                forward(given, call.q, call.k, call.v, **call.arguments)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    "change",
    [{"tile_order": TileOrder.PERSISTENT}, {"own_output": True}, {"direct_output": True}],
    ids=str,
)
def test_few_queries_of_their_own_lengths_need_no_counter_in_a_plain_config(
    change: dict[str, Any],
) -> None:
    call = Case("", 3, 20, batch=2, used=(5, 20)).make()
    features = Plan(call.call(), CONFIG).recipe.features
    assert isinstance(features, Sm90Features)
    assert (features.decode, features.is_split, features.heads_together) == (True, True, 2)
    with pytest.raises(UnsupportedError, match=r"a length of its own .* with TileOrder.DYNAMIC"):
        Plan(call.call(), replace(CONFIG, **change))


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seqused_k": None}, "block_table is given without seqused_k; pass the number of keys"),
        ({"block_table": torch.zeros(2, 3)}, "block_table is torch.float32; pass torch.int32"),
        (
            {"block_table": ints(1, 2)},
            r"block_table has shape \(2\); it must be \(batch = 2, pages",
        ),
        ({"block_table": ints(1, 2)[None]}, r"shape \(1, 2\); it must be \(batch = 2"),
        ({"block_table": torch.zeros(3, 2, dtype=torch.int32).T}, "block_table has stride 2"),
        (
            {"block_table": [[0]]},
            r"block_table is a list; pass a torch.Tensor of shape \(batch, n\)",
        ),
        (
            {"cu_seqlens_k": ints(0, 1, 2), "max_seqlen_k": 1},
            "keys are in pages or packed, not both",
        ),
    ],
)
@pytest.mark.parametrize("config", [None, CONFIG], ids=["torch", "kernel"])
def test_tables_that_name_no_pages_are_refused(
    change: dict[str, Any], message: str, config: HopperForwardKernelConfig | None
) -> None:
    q, _, _ = generate_qkv(2, 1, 4, 64, DType.BF16)
    k = torch.zeros(5, 16, 2, 64, dtype=torch.bfloat16)
    table = torch.zeros(2, 3, dtype=torch.int32)
    keywords: dict[str, Any] = {"seqused_k": ints(1, 2), "block_table": table, **change}
    with pytest.raises(UnsupportedError, match=message):
        attention(q, k, k, config=config, **keywords)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("config", [None, PACKED], ids=["torch", "kernel"])
def test_validation_looks_for_pages_that_are_not_there(
    config: HopperForwardKernelConfig | None,
) -> None:
    q, _, _ = generate_qkv(2, 1, 4, 64, DType.BF16)
    k = torch.zeros(5, 16, 2, 64, dtype=torch.bfloat16)
    for page in (5, -1):
        table = torch.tensor([[0, page, page], [4, page, page]], dtype=torch.int32)
        asked: dict[str, Any] = {"block_table": table, "config": config, "validate": True}
        message = rf"block_table\[1, 1\] is {page}, and sequence 1 has 17 keys; .* 5 pages"
        with pytest.raises(UnsupportedError, match=message):
            attention(q, k, k, seqused_k=ints(16, 17), **asked)
    with pytest.raises(UnsupportedError, match=r"seqused_k\[0\] is 49; sequence 0 has 48 keys"):
        attention(q, k, k, seqused_k=ints(49, 17), **asked)
