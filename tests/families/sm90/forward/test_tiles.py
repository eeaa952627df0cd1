# SPDX-License-Identifier: Apache-2.0
"""Tiles of sequences by what probes with several kernels beside each other showed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.families.sm90.forward.tiles import num_tiles, shares_tiles
from flash_attention.kernel_configs import DType, TileOrder
from tests.families.problems import recipe_of
from tests.families.sm90.forward.test_heuristic import chosen
from tests.hopper_configs import square

SHARED: dict[str, Any] = {"batch": 4, "heads": 16, "causal": True}


@pytest.mark.parametrize(
    ("d_head", "rows", "is_dynamic"),
    [
        (64, 257, False),
        (72, 1024, True),  # rows begin within a sector
        (96, 257, True),  # one row of the third tile
        (96, 192 + 97, False),  # the second tile is over half full
        (96, 100, False),  # all tiles are alike
        (96, 128, False),
        (128, 128, True),  # memory is the limit
        (128, 256, False),
        (192, 250, True),
        (192, 256, False),
        (192, 2049, False),  # of many tiles the last one matters little
        (256, 128, False),
    ],
)
def test_tiles_that_are_not_alike_are_handed_out(d_head: int, rows: int, is_dynamic: bool) -> None:
    config = chosen(replace(square(DType.BF16, d_head, rows), batch=40))
    assert (config.tile_order is TileOrder.DYNAMIC) == is_dynamic, config.short_form()


@pytest.mark.parametrize(
    ("d_head", "tokens", "consumers", "keys"),
    [
        (80, 4000, 3, 96),
        (96, 3000, 2, 128),
        (96, 9000, 3, 80),
        (88, 9000, 3, 80),
        (112, 3000, 3, 80),
        (128, 4500, 2, 128),
        (128, 9000, 3, 64),
        (144, 9000, 2, 128),
    ],
)
def test_many_rows_of_documents_have_tiles_of_three_consumers(
    d_head: int, tokens: int, consumers: int, keys: int
) -> None:
    lengths: dict[str, Any] = {
        "total_q": tokens,
        "total_k": tokens,
        "seq_q": 1000,
        "seq_k": 1000,
        "batch": 8,
    }
    problem = replace(square(DType.BF16, d_head, 1000), **lengths)
    config = chosen(problem)
    assert (config.consumers, config.B_c) == (consumers, keys)
    assert config.direct_output == (not config.own_output) == (d_head <= 96 or d_head > 128)
    assert chosen(replace(problem, causal=True)).consumers == 2


def test_sequences_of_one_length_have_the_tiles_that_longer_documents_have() -> None:
    """One d_head has a kernel that serves both, but for short tiles under a mask."""
    lengths: dict[str, Any] = {"seq_q": 1000, "seq_k": 1000, "batch": 8}
    problem = replace(square(DType.BF16, 64, 1000), **lengths, seqused_k=True)
    assert chosen(problem).consumers == 2
    assert chosen(replace(problem, seq_q=1025)).consumers == 3


@pytest.mark.parametrize(
    ("d_head", "heads_k", "rows", "prefetches"),
    [
        (64, 8, 256, True),
        (80, 8, 256, False),
        (80, 8, 257, True),
        (128, 8, 256, False),
        (128, 2, 256, True),
        (128, 2, 512, False),
    ],
)
def test_short_causal_tiles_prefetch_q_where_k_and_v_leave_room(
    d_head: int, heads_k: int, rows: int, prefetches: bool
) -> None:
    problem = replace(square(DType.BF16, d_head, rows, True), batch=40, heads=8, heads_k=heads_k)
    assert chosen(problem).prefetch_q == prefetches


@pytest.mark.parametrize(
    ("tokens", "change", "consumers"),
    [
        (9000, {"causal": True}, 1),
        (9400, {"causal": True}, 2),  # over 300 tiles of two consumers
        (9000, {"window": (999, 0)}, 1),
        (9000, {}, 2),
        (9000, {"causal": True, "d_head": 240, "d_v": 240}, 2),
        (9000, {"causal": True, "total_k": None, "seqused_k": True}, 2),  # keys in a cache
    ],
)
def test_few_documents_of_256_columns_have_tiles_of_one_consumer(
    tokens: int, change: dict[str, Any], consumers: int
) -> None:
    lengths: dict[str, Any] = {
        "seq_q": 5000,
        "seq_k": 5000,
        "batch": 3,
        "total_q": tokens,
        "total_k": tokens,
    }
    problem = replace(square(DType.BF16, 256, 5000), heads=4, heads_k=1, **lengths)
    problem = replace(problem, **change)
    assert chosen(problem).consumers == consumers
    if problem.total_k is None:
        return
    recipe = recipe_of(chosen(problem), problem, num_sms=132)
    assert recipe.resize is not None
    other = replace(problem, total_q=9500, total_k=9500)
    assert (recipe.resize(other) is not None) == (chosen(other) == chosen(problem))


@pytest.mark.parametrize(
    ("d_head", "change", "shares"),
    [
        (128, {"heads_k": 2, "seq_q": 257}, True),
        (128, {"heads_k": 2, "seq_q": 256}, False),
        (128, {"heads_k": 2, "seq_q": 3072}, True),
        (128, {"heads_k": 2, "seq_q": 3073}, False),
        (64, {"heads_k": 4, "seq_q": 9000}, True),
        (192, {"heads_k": 4, "seq_q": 9000}, True),
        (256, {"heads_k": 2, "seq_q": 9000}, False),
        (128, {"heads_k": 4, "seq_q": 1000}, False),
        (64, {"heads_k": 8, "seq_q": 1000}, False),
        (64, {"heads_k": 16, "seq_q": 1000}, False),
        (64, {"heads": 14, "heads_k": 2, "seq_q": 1000}, False),  # 7 do not divide a warp's rows
        (256, {"heads_k": 8, "seq_q": 192}, True),  # 384 rows are three tiles, and not four
        (256, {"heads_k": 8, "seq_q": 193}, False),
        (256, {"heads_k": 2, "seq_q": 130, "causal": False}, True),
        (256, {"heads_k": 2, "seq_q": 700, "causal": False}, False),
        (64, {"heads_k": 2, "seq_q": 1000, "window": (500, 0)}, False),
        (64, {"heads_k": 2, "seq_q": 1000, "dropout_p": 0.1}, False),
        (64, {"heads_k": 2, "seq_q": 1000, "return_max": True}, False),
        (64, {"heads_k": 2, "seq_q": 1000, "batch_invariant": True}, False),
        (64, {"heads_k": 2, "seq_q": 1000, "seqused_k": True}, False),
    ],
)
def test_heads_share_tiles_where_that_was_measured_to_be_faster(
    d_head: int, change: dict[str, Any], shares: bool
) -> None:
    changed = {**SHARED, **change}
    rows = changed["seq_q"]
    problem = replace(square(DType.BF16, d_head, rows, True), **{**changed, "seq_k": rows})
    assert shares_tiles(problem) == shares
    group = problem.heads_per_kv if shares else 1
    tiles = problem.batch * problem.heads // group * -(-rows * group // 128)
    assert num_tiles(problem, 128) == tiles


def test_a_recipe_of_documents_serves_lengths_with_the_same_tiles() -> None:
    """Of 16 heads of 112, 128 x 132 x 2.5 x 1.5 rows are 2.5 waves of tiles of 192."""
    lengths: dict[str, Any] = {"seq_q": 1000, "seq_k": 1000, "batch": 8}
    problem = replace(square(DType.BF16, 112, 1000), **lengths, total_q=9000, total_k=9000)
    recipe = recipe_of(chosen(problem), problem, num_sms=132)
    assert recipe.resize is not None
    for tokens, serves in ((9000, True), (2600, True), (2200, False)):
        other = replace(problem, total_q=tokens, total_k=tokens)
        assert (chosen(other) == chosen(problem)) == serves
        assert (recipe.resize(other) is not None) == serves
