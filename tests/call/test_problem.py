# SPDX-License-Identifier: Apache-2.0
"""A problem read from tensors and the launch geometry it gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flash_attention.call.call import Extras, Options
from flash_attention.call.features import PLAIN, Features, MaskKind
from flash_attention.call.problem import Geometry, Problem, normalised_mask
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    TileOrder,
)

CONFIG = FlashForwardKernelConfig(
    DType.FP16, 128, 64, 32, 4, True, True, True, 0, 2, 2, False, True
)
HOPPER = HopperForwardKernelConfig(DType.FP16, 128, 2, 128, 2, tma=True, specialised=True)
PROBLEM = Problem(
    batch=5,
    seq_q=192,
    seq_k=512,
    heads=6,
    heads_k=2,
    d_head=128,
    d_v=128,
    dtype=torch.float16,
    softmax_scale=128**-0.5,
)


EXACT = replace(PROBLEM, heads_k=6)


@pytest.mark.parametrize(
    ("change", "features"),
    [
        ({}, PLAIN),
        ({"softcap": 2.0}, Features(softcap=True)),
        ({"seq_q": 64, "seq_k": 32}, PLAIN),
        ({"seq_q": 191}, Features(guarded=True)),
        ({"seq_k": 48}, Features(guarded=True)),
        ({"heads_k": 2}, Features(guarded=True)),
        ({"d_head": 120}, Features(guarded=True)),
        ({"d_v": 64, "softcap": 2.0}, Features(softcap=True, guarded=True)),
        ({"sinks": True}, Features(sinks=True)),
        ({"causal": True, "seq_q": 191}, Features(MaskKind.CAUSAL)),
        ({"seqused_k": True, "sinks": True}, Features(per_batch=True, sinks=True)),
    ],
)
def test_the_first_family_guards_what_its_tiles_do_not_cover(
    change: dict[str, Any], features: Features
) -> None:
    problem = replace(EXACT, **change)
    assert problem.features_for(CONFIG) == features
    assert problem.features_for(HOPPER) == problem.features == replace(features, guarded=False)


def test_a_log_sum_exp_is_not_for_exact_tiles() -> None:
    assert EXACT.features_for(CONFIG, return_lse=True) == Features(guarded=True)
    assert EXACT.features_for(HOPPER, return_lse=True) == PLAIN


def lengths(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32)


def test_a_problem_is_read_from_the_tensors() -> None:
    q = torch.empty(2, 192, 6, 64, dtype=torch.bfloat16)
    k = torch.empty(2, 320, 3, 64, dtype=torch.bfloat16)
    v = torch.empty(2, 320, 3, 40, dtype=torch.bfloat16)
    problem = Problem.from_tensors(q, k, v)
    assert problem == Problem(
        batch=2,
        seq_q=192,
        seq_k=320,
        heads=6,
        heads_k=3,
        d_head=64,
        d_v=40,
        dtype=torch.bfloat16,
        softmax_scale=0.125,
    )
    assert (problem.heads_per_kv, problem.lse_shape) == (2, (2, 6, 192))
    assert problem.features == PLAIN
    options = Options(causal=True, softmax_scale=0.5, softcap=3.0)
    asked = Problem.from_tensors(q, k, v, options=options, extras=Extras(sinks=torch.empty(6)))
    assert asked == replace(problem, causal=True, softmax_scale=0.5, softcap=3.0, sinks=True)
    assert asked.features == Features(MaskKind.CAUSAL, softcap=True, sinks=True)


def test_a_packed_problem_has_the_lengths_the_caller_says() -> None:
    q, k = torch.empty(500, 6, 64), torch.empty(900, 2, 64)
    options = Options(max_seqlen_q=200, max_seqlen_k=300)
    problem = Problem.from_tensors(
        *(q, k, k),
        options=options,
        extras=Extras(cu_seqlens_q=lengths(5), cu_seqlens_k=lengths(5)),
    )
    assert (problem.batch, problem.seq_q, problem.seq_k) == (4, 200, 300)
    assert (problem.total_q, problem.total_k, problem.lse_shape) == (500, 900, (6, 500))
    assert problem.features == Features(per_batch=True)
    cache = torch.empty(4, 256, 2, 64)
    extras = Extras(cu_seqlens_q=lengths(5), seqused_k=lengths(4))
    mixed = Problem.from_tensors(q, cache, cache, options=Options(max_seqlen_q=200), extras=extras)
    assert (mixed.batch, mixed.seq_k, mixed.total_k, mixed.seqused_k) == (4, 256, None, True)
    rows = torch.empty(4, 10, 6, 64)
    used = Problem.from_tensors(rows, cache, cache, extras=Extras(seqused_k=lengths(4)))
    assert (used.per_batch, used.lse_shape, used.total_q) == (True, (4, 6, 10), None)


@pytest.mark.parametrize(
    ("causal", "window", "expected"),
    [
        (False, None, (False, None)),
        (True, None, (True, None)),
        (False, (-1, -1), (False, None)),
        (False, (None, None), (False, None)),
        (False, (-1, 0), (True, None)),
        (True, (None, 7), (True, None)),
        (False, (5, 3), (False, (5, 3))),
        (True, (5, 3), (False, (5, 0))),
        (True, (5, -1), (False, (5, 0))),
        (False, (0, 0), (False, (0, 0))),
        (False, (5, None), (False, (5, 100))),
        (False, (-1, 5), (False, (200, 5))),
        (False, (1 << 40, 1 << 40), (False, (200, 100))),
    ],
)
def test_windows_are_brought_into_one_form(
    causal: bool, window: tuple[int | None, int | None] | None, expected: tuple[object, object]
) -> None:
    assert normalised_mask(causal, window, rows_q=100, rows_k=200) == expected


@pytest.mark.parametrize(
    "change",
    [{"batch": 0}, {"seq_q": 0}, {"seq_k": 0}, {"heads": 0}, {"heads": 0, "heads_k": 0}],
)
def test_without_a_query_or_a_key_there_is_nothing_to_launch(change: dict[str, Any]) -> None:
    assert not PROBLEM.idle
    assert replace(PROBLEM, **change).idle


def test_numbers_of_numpy_become_numbers_that_arguments_take() -> None:
    q = torch.empty(1, 8, 1, 64)
    whole: Any = np.int64(3)
    half: Any = np.float32(0.5)
    options = Options(window=(whole, whole), softmax_scale=half, softcap=half)
    problem = Problem.from_tensors(q, q, q, options=options)
    assert problem.window is not None
    numbers = (*problem.window, problem.softmax_scale, problem.softcap)
    assert [type(number) for number in numbers] == [int, int, float, float]


def test_packed_queries_are_no_more_tiles_than_their_rows_and_entries() -> None:
    packed = replace(PROBLEM, batch=100, seq_q=1000, total_q=1500)
    assert packed.num_tiles(128) == (1500 // 128 + 100) * 6
    assert replace(packed, seq_q=1).num_tiles(128) == 100 * 6
    assert replace(packed, total_q=None).num_tiles(128) == 800 * 6


def test_a_packed_problem_is_idle_when_its_tensors_are_empty() -> None:
    packed = replace(PROBLEM, total_q=10, total_k=10)
    assert not packed.idle
    assert not replace(packed, seq_q=0, seq_k=0).idle
    assert replace(packed, total_q=0).idle
    assert replace(packed, total_k=0).idle


@pytest.mark.parametrize(
    ("rows", "warps", "seq_q", "q_blocks"), [(64, 4, 192, 3), (128, 8, 256, 2), (64, 4, 64, 1)]
)
def test_every_query_block_of_every_head_gets_a_cta(
    rows: int, warps: int, seq_q: int, q_blocks: int
) -> None:
    config = replace(CONFIG, B_r=rows, n_warps=warps)
    geometry = Geometry.of(config, replace(PROBLEM, seq_q=seq_q), num_sms=1)
    assert geometry.grid == (q_blocks, 6, 5)
    assert geometry.block == 32 * warps
    assert geometry.smem_bytes == 2 * 128 * (rows + 32 + 32)


@pytest.mark.parametrize(
    ("consumers", "seq_q", "tiles"), [(2, 192, 60), (2, 128, 30), (1, 1, 30), (3, 193, 60)]
)
def test_a_hopper_grid_is_flat_and_covers_the_last_rows(
    consumers: int, seq_q: int, tiles: int
) -> None:
    config = replace(HOPPER, consumers=consumers, B_c=64)
    geometry = Geometry.of(config, replace(PROBLEM, seq_q=seq_q), num_sms=1)
    assert geometry.grid == (tiles, 1, 1)
    assert geometry.block == 128 * (consumers + 1)
    assert geometry.smem_bytes == config.smem_bytes()


@pytest.mark.parametrize("order", [TileOrder.PERSISTENT, TileOrder.DYNAMIC])
@pytest.mark.parametrize(("num_sms", "ctas"), [(132, 60), (60, 60), (59, 59), (2, 2)])
def test_persistent_ctas_are_as_many_as_the_device_holds(
    order: TileOrder, num_sms: int, ctas: int
) -> None:
    config = replace(HOPPER, tile_order=order, group_mib=64 * (order is TileOrder.DYNAMIC))
    assert Geometry.of(config, PROBLEM, num_sms).grid == (ctas, 1, 1)


@pytest.mark.parametrize("order", [TileOrder.PERSISTENT, TileOrder.DYNAMIC])
@pytest.mark.parametrize(("keys", "ctas"), [(64, 20), (112, 10)])
def test_two_ctas_of_one_consumer_share_a_multiprocessor_if_they_fit(
    order: TileOrder, keys: int, ctas: int
) -> None:
    group_mib = 64 * (order is TileOrder.DYNAMIC)
    config = replace(HOPPER, consumers=1, B_c=keys, tile_order=order, group_mib=group_mib)
    assert config.broken_rule() is None
    assert Geometry.of(config, PROBLEM, num_sms=10).grid == (ctas, 1, 1)
    packed = replace(PROBLEM, total_q=1000)
    assert Geometry.of(config, packed, num_sms=10).grid == (ctas, 1, 1)


@pytest.mark.parametrize("order", list(TileOrder))
@pytest.mark.parametrize(("seq_q", "ctas"), [(192, 59), (1, 30), (0, 1)])
def test_entries_of_their_own_lengths_are_walked_by_resident_ctas(
    order: TileOrder, seq_q: int, ctas: int
) -> None:
    config = replace(HOPPER, tile_order=order, group_mib=64 * (order is TileOrder.DYNAMIC))
    problem = replace(PROBLEM, seq_q=seq_q, total_q=1000)
    assert Geometry.of(config, problem, num_sms=59).grid == (ctas, 1, 1)
