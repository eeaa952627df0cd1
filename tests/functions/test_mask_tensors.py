# SPDX-License-Identifier: Apache-2.0
"""Tensors that say which queries see which keys, one by one or in blocks: kernels visit no block
that they leave empty."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flash_attention import Function
from flash_attention.compat.block_masks import BlockMaskLists
from flash_attention.compat.mask_tensors import mask_options
from flash_attention.launch.emulation import Settings, emulate_backward_plan, emulate_plan
from flash_attention.launch.plan import Plan
from tests.devices import on_devices
from tests.functions.cases import Run

pytestmark = pytest.mark.slow

QUERIES, KEYS, D = 192, 320, 64
ROWS, COLUMNS = 64, 32  # of a tile of queries, and of a block of keys that it visits
PARTIAL, FULL = [[0, 4], [], [1, 2]], [[2], [3], [0]]  # blocks of 64 keys that 64 queries see


def listed(rows: list[list[int]], device: str) -> tuple[Tensor, Tensor]:
    counts = torch.tensor([[[len(row) for row in rows]]], dtype=torch.int32)
    indices = torch.tensor([[[row + [0] * (5 - len(row)) for row in rows]]], dtype=torch.int32)
    return counts.to(device), indices.to(device)


def of_blocks(device: str) -> Function:
    """Lists of blocks that a mask function knows nothing of."""
    block_mask = BlockMask.from_kv_blocks(
        *listed(PARTIAL, device),
        *listed(FULL, device),
        BLOCK_SIZE=64,
        mask_mod=lambda b, h, q, k: (q + k) % 3 > 0,
        seq_lengths=(QUERIES, KEYS),
    )
    return Function(mask=BlockMaskLists(block_mask, QUERIES, KEYS).mask)


def of_elements(device: str) -> Function:
    """The same as a tensor of bools, in memory whose rows do not follow each other."""
    query, key = torch.arange(QUERIES)[:, None], torch.arange(KEYS)
    seen = torch.zeros(1, 1, QUERIES, KEYS + 5, dtype=torch.bool)[..., :KEYS]
    for row in range(3):
        for column in PARTIAL[row] + FULL[row]:
            block = slice(64 * row, 64 * row + 64), slice(64 * column, 64 * column + 64)
            some = (query[block[0]] + key[block[1]]) % 3 > 0
            seen[0, 0][block] = some | torch.tensor(column in FULL[row])
    function = mask_options(seen.to(device))["function"]
    assert function is not None
    return function


MAKES: dict[str, Any] = {"blocks": of_blocks, "elements": of_elements}


@pytest.mark.parametrize(("name", "device"), on_devices(MAKES))
def test_results_are_right(name: str, device: str) -> None:
    problem = {"q_lengths": QUERIES, "k_lengths": KEYS, "heads": (2, 1), "batch": 1}
    Run(MAKES[name], device, problem).check()


@pytest.mark.parametrize("name", MAKES)
def test_only_listed_blocks_are_visited(name: str) -> None:
    run = Run(MAKES[name], problem={"q_lengths": QUERIES, "k_lengths": KEYS})
    call = run.case().call
    visits = sum(len(row) for row in (*PARTIAL, *FULL)) * 64 // COLUMNS
    asked = call.call._replace(out=None)
    forward = emulate_plan(Plan(asked, run.forward), asked, Settings())
    assert forward.counters.tensor_operations == visits * 2 * (2 * ROWS * COLUMNS * D)
    backward = emulate_backward_plan(Plan(call, run.backward), call, Settings())
    products = sum(counters.tensor_operations for counters in backward.counters)
    # A tile of 128 keys visits 64 queries if one of the two blocks is listed.
    rows = [{c // 2 for c in PARTIAL[row] + FULL[row]} for row in range(3)]
    assert products == sum(map(len, rows)) * 5 * (2 * 64 * 128 * D)
