# SPDX-License-Identifier: Apache-2.0
"""How the keys of short queries are cut, counted and computed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flash_attention.call.problem import Problem
from flash_attention.families.sm90.forward import decode
from flash_attention.families.sm90.forward.features import SplitKind
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig
from flash_attention.launch import device
from flash_attention.launch.plan import Plan
from tests.decode_cases import DECODE_CASES, DecodeCase
from tests.devices import on_devices, ran
from tests.feature_cases import Case
from tests.gate import EXHAUSTIVE

pytestmark = pytest.mark.slow  # left out of `make quick`

PROBLEM = Problem(
    batch=3,
    seq_q=2,
    seq_k=700,
    heads=12,
    heads_k=4,
    d_head=64,
    d_v=64,
    dtype=torch.bfloat16,
    softmax_scale=0.1,
)

# Rows of its first and of its last warpgroup see keys two blocks apart.
TALL = HopperForwardKernelConfig(*(DType.BF16, 64, 3, 64, 2), tma=True, specialised=True)
FAR_APART = [
    Case("causal", 192, 256, heads=2, causal=True),
    Case("causal, a length of its own", 192, 256, heads=2, used=(200,), causal=True),
    Case("the own place", 192, 192, heads=2, heads_k=2, window=(0, 0)),
    Case("a window, a length of its own", 192, 256, heads=2, heads_k=2, used=(201,), window=(9, 0)),
]


def segments(kv_splits: KvSplits) -> set[tuple[int, int]]:
    """Tile and CTA of every block, along the line of all tiles' blocks."""
    tiles = kv_splits.num_tiles(PROBLEM, consumers=1)
    line = range(tiles * kv_splits.key_blocks)
    return {(block // kv_splits.key_blocks, block // kv_splits.blocks) for block in line}


@pytest.mark.parametrize(
    ("count", "kind", "blocks"),
    [
        (1, SplitKind.EVEN, 132),
        (11, SplitKind.EVEN, 12),
        (12, SplitKind.FIXED, 11),
        (22, SplitKind.EVEN, 6),  # of which a tile has fewer than two
        (60, SplitKind.FIXED, 4),  # 3 would do
    ],
)
def test_splits_begin_with_their_tile_if_that_makes_them_little_longer(
    count: int, kind: SplitKind, blocks: int
) -> None:
    kv_splits = KvSplits.even(PROBLEM, 64, count, least=1).within_tiles()
    assert (kv_splits.kind, kv_splits.blocks) == (kind, blocks)


@pytest.mark.parametrize("count", [1, 5, 11, 12, 13, 60, 1000])
def test_even_splits_share_the_line_and_their_partials_do_not_collide(count: int) -> None:
    kv_splits = KvSplits.even(PROBLEM, 64, count, least=1)
    ctas = kv_splits.num_ctas(PROBLEM, consumers=1)
    assert ctas <= count
    assert {cta for _, cta in segments(kv_splits)} == set(range(ctas))
    partials = [tile + cta for tile, cta in segments(kv_splits)]
    assert len(partials) == len(set(partials))
    assert (
        max(partials) < kv_splits.num_partial_rows(PROBLEM, consumers=1) // 6
    )  # two queries, three heads


def test_splits_of_so_many_keys_begin_anew_with_every_tile() -> None:
    kv_splits = KvSplits.of_keys(PROBLEM, 64, 256)
    assert kv_splits == KvSplits(SplitKind.FIXED, blocks=4, key_blocks=11, heads_together=3)
    assert kv_splits.num_ctas(PROBLEM, consumers=1) == 12 * 3
    assert kv_splits.num_partial_rows(PROBLEM, consumers=1) == 12 * 3 * 6
    rows = 12 * 3 * 6
    assert kv_splits.scratch(PROBLEM, consumers=1) == {
        "o_partial": rows * 64 * 4,
        "lse_partial": rows * 4,
    }
    assert KvSplits.whole(PROBLEM, 64).scratch(PROBLEM, consumers=1) == {}


@pytest.mark.parametrize(
    ("seq_q", "keys", "heads", "one"),
    [
        (1, 512, 4, True),  # 4 rows, of two splits and a border
        (1, 2048, 4, True),  # 6 splits and a border: 28 rows
        (1, 8192, 4, False),  # 22 splits and a border: 92
        (2, 512, 4, True),
        (4, 2048, 4, False),
        (1, 2048, 8, True),  # 56
        (2, 2048, 8, False),
    ],
)
def test_few_rows_of_partial_results_are_combined_at_once(
    seq_q: int, keys: int, heads: int, one: bool
) -> None:
    problem = replace(PROBLEM, seq_q=seq_q, seq_k=keys, heads=heads, heads_k=1, batch=1)
    kv_splits = KvSplits.even(problem, 96, 132, least=4)
    assert not kv_splits.one_launch
    assert kv_splits.with_launches(problem).one_launch == one
    assert replace(kv_splits.with_launches(problem), one_launch=False) == kv_splits


@pytest.mark.parametrize(("group", "together"), [(1, 1), (63, 63), (64, 64), (65, 1)])
def test_heads_lie_side_by_side_if_a_warpgroup_has_rows_for_all(group: int, together: int) -> None:
    problem = replace(PROBLEM, heads=4 * group)
    assert KvSplits.whole(problem, 64).heads_together == together


CUTS = [
    pytest.param(
        *(short, sms),
        id=f"{short.name}-{sms}",
        marks=() if place % 4 == 1 and sms == (3, 40)[place % 8 == 5] else EXHAUSTIVE,
    )
    for place, short in enumerate(DECODE_CASES)
    for sms in (3, 40)
]


@pytest.mark.parametrize(("short", "sms"), CUTS)
def test_every_cut_of_the_line_of_blocks_gives_the_same(
    short: DecodeCase, sms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "FEW_BLOCKS", 0)
    monkeypatch.setattr(decode, "SPLITS_OF_A_TILE", 99)
    monkeypatch.setattr(KvSplits, "within_tiles", lambda kv_splits, **_: kv_splits)
    monkeypatch.setattr(decode, "BUSY", 99)
    monkeypatch.setattr(device, "EMULATED_SMS", sms)
    made = short.make()
    call = short.call(made)._replace(return_lse=True, split_keys=None)
    plan = Plan(call)
    found = decode.choose_splits(plan.problem, plan.choice.setting.arch, sms)
    if not isinstance(found, str) and found[1].is_split:
        assert plan.recipe.num_splits == found[1].num_ctas(plan.problem, consumers=1)
    out, lse = plan.run(call)
    made.assert_right(out, lse)


@pytest.mark.parametrize(("case", "place"), on_devices(FAR_APART))
def test_a_warpgroup_may_see_none_of_a_split(case: Case, place: str) -> None:
    made = case.make(place)
    call = made.call(split_keys=64, return_lse=True)
    made.assert_right(*ran(Plan(call, TALL), call))
