# SPDX-License-Identifier: Apache-2.0
"""The Hopper rungs: within tolerance, nothing found in any order, exactly the expected counts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from flash_attention.launch import emulation
from flash_attention.launch.device import EMULATED_SMS
from flash_attention.launch.emulate import emulate
from flash_attention.launch.emulation import Emulation
from flash_attention.reference.judge import Judge, check_lse, generate_qkv
from tests.hopper_configs import LADDERS, hopper_ladder, of_the_gate

SEQ, HEADS = 256, 2
ROWS, KEYS = 128, 128  # of a tile and of a key block, on every rung
ODD = (200, 400, 2, 1)  # queries, keys, and heads of each; rings of two stages wrap
CASES = [
    pytest.param(
        *(config, causal, odd),
        id=f"{dtype.name}-{d_head}-{'causal' if causal else 'full'}-{rung.number}-{odd}",
        marks=()
        if of_the_gate(rung, (dtype, d_head, causal)) and rung.number % 2 == odd
        else pytest.mark.exhaustive,
    )
    for dtype, d_head, causal in LADDERS
    for rung, config in hopper_ladder(dtype, d_head)
    for odd in (False, True)
]


@cache
def problem(
    dtype: DType, d_head: int, causal: bool, sizes: tuple[int, int, int, int]
) -> tuple[tuple[Tensor, Tensor, Tensor], Judge]:
    seq_q, seq_k, heads, heads_k = sizes
    qkv = generate_qkv(1, seq_q, heads, d_head, dtype, seq_len_k=seq_k, n_heads_k=heads_k)
    return qkv, Judge(*qkv, causal=causal)


def run_clean(
    config: HopperForwardKernelConfig,
    causal: bool,
    sizes: tuple[int, int, int, int] = (SEQ, SEQ, HEADS, HEADS),
    schedule: str = "lockstep",
    seed: int = 0,
) -> Emulation:
    """Emulate a rung; it must be right, and nothing may be found."""
    qkv, judge = problem(config.dtype, config.d_head, causal, sizes)
    seen = emulate(config, *qkv, causal=causal, return_lse=True, schedule=schedule, seed=seed)
    assert list(map(str, seen.findings)) == []
    check = judge.check(seen.output)
    assert check.ok, str(check)
    assert seen.lse is not None
    lse = check_lse(seen.lse, *qkv[:2], causal=causal)
    assert lse.ok, str(lse)
    return seen


def warp_instructions(seen: Emulation, opcode: str) -> int:
    return sum(n for name, n in seen.counters.instructions.items() if name.startswith(opcode))


def check_counts(config: HopperForwardKernelConfig, seen: Emulation) -> None:
    """The work of two products, every tensor moved as often as tiles need it, no bank conflicts."""
    products = warp_instructions(seen, "wgmma.mma_async") // 4  # a warpgroup's four warps
    a_block = config.d_head // 16 + KEYS // 16
    assert products == a_block * (SEQ // 64) * (SEQ // KEYS) * HEADS
    assert warp_instructions(seen, "mma.sync") == 0

    tensor = SEQ * HEADS * config.d_head * 2
    counter_bytes = 8 if config.tile_order is TileOrder.DYNAMIC else 0
    assert seen.counters.bytes_loaded == tensor * (1 + 2 * SEQ // ROWS)
    assert seen.counters.bytes_stored == tensor + 4 * HEADS * SEQ + counter_bytes
    boxes = SEQ // ROWS * HEADS * (config.consumers + 2 * (SEQ // KEYS)) * config.d_head // 64
    loads = warp_instructions(seen, "cp.async.bulk.tensor.4d.shared")
    assert loads == (boxes if config.tma else 0)

    assert seen.counters.conflicts == 0


@pytest.mark.parametrize(("config", "causal", "odd"), CASES)
def test_every_rung_is_right_and_clean_in_every_order(
    config: HopperForwardKernelConfig, causal: bool, odd: bool
) -> None:
    """Another order gives the same bits, and other lengths are right in it."""
    lockstep = run_clean(config, causal)
    other = "depth-first" if causal != odd else "random"
    if odd:
        run_clean(config, causal, ODD, schedule=other, seed=7)
    else:
        assert torch.equal(run_clean(config, causal, schedule=other).output, lockstep.output)
    if not causal:
        check_counts(config, lockstep)


CAUSAL_LAST = hopper_ladder(DType.FP16, 64)[-1][1]


def test_a_causal_mask_leaves_out_blocks_and_a_narrow_first_block_half_of_one() -> None:
    below = next(c for _, c in hopper_ladder(DType.FP16, 64) if c.tile_order is TileOrder.DYNAMIC)
    whole, narrow = (run_clean(config, True) for config in (below, CAUSAL_LAST))
    # Warpgroup pairs see 1, 1, 2 and 2 of 2 blocks; the first of each pair half of its last one.
    a_block = 64 // 16 + KEYS // 16
    assert warp_instructions(whole, "wgmma.mma_async") == 4 * HEADS * 6 * a_block
    saved = KEYS // 16 // 2  # steps of P V
    assert warp_instructions(narrow, "wgmma.mma_async") == 4 * HEADS * (6 * a_block - 2 * saved)
    wide = "wgmma.mma_async.sync.aligned.m64n128k16"  # scores; O is 64 wide
    assert warp_instructions(whole, wide) == 4 * HEADS * 6 * (64 // 16)
    assert warp_instructions(narrow, wide) == 4 * HEADS * 4 * (64 // 16)


def test_the_dynamic_order_hands_out_every_tile_and_leaves_the_counter_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[list[int]] = []

    def note(plan: object, counter: NDArray[np.int32]) -> None:
        left.append(counter.tolist())

    monkeypatch.setattr(emulation, "_check_tile_counter", note)
    seen = run_clean(CAUSAL_LAST, True, (SEQ, SEQ, 4, 4))
    assert left == [[0, 0]]
    tiles = SEQ // ROWS * 4
    # One for each tile asks for the next, one for each CTA says that it is done.
    assert warp_instructions(seen, "atom.global") == tiles + EMULATED_SMS


def test_heads_are_walked_in_groups_of_which_the_last_is_smaller() -> None:
    config = replace(CAUSAL_LAST, group_mib=1)
    sizes = (129, 1400, 5, 5)
    kv_bytes = 2 * 1400 * config.d_head * 2
    assert (1 << 20) // kv_bytes == 2  # heads of a group
    seen = run_clean(config, False, sizes)
    assert warp_instructions(seen, "atom.global") == 2 * 5 + EMULATED_SMS
