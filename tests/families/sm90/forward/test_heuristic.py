# SPDX-License-Identifier: Apache-2.0
"""What the Hopper family chooses: valid, wide enough, and the same for calls that differ little."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import pytest
import torch

from flash_attention import Function
from flash_attention.arch import ARCHES, MEASURED_ARCH
from flash_attention.call.problem import Problem
from flash_attention.families.sm90.forward.family import SM90
from flash_attention.families.sm90.forward.fit import check_fits
from flash_attention.families.sm90.forward.heuristic import (
    PACKED_GROUP_MIB,
    WIDE_PACKED_GROUP_MIB,
    group_mib,
    heuristic,
    hopper_d_head,
)
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from tests.families.problems import recipe_of
from tests.hopper_configs import D_HEADS, LENGTHS, selected, square

ARCH = ARCHES["sm_90"]
PROBLEM = replace(square(DType.BF16, 128, 512), batch=2, heads=4, heads_k=4)
FEATURES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (100, 0)},
    {"softcap": 30.0},
    {"sinks": True},
    {"total_q": 900, "total_k": 900},
    {"seqused_k": True, "causal": True},
]
MASKS: list[dict[str, Any]] = [{}, {"causal": True}, {"window": (100, 0)}]
PACKED = replace(PROBLEM, total_q=900, total_k=900)


def chosen(problem: Problem) -> HopperForwardKernelConfig:
    config = heuristic(problem, ARCH)
    assert isinstance(config, HopperForwardKernelConfig)
    return config


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d_head", D_HEADS)
def test_there_is_a_valid_config_at_every_length(d_head: int, causal: bool, dtype: DType) -> None:
    for seq_len in (1, 77, *LENGTHS, 1 << 20):
        problem = replace(square(dtype, d_head, 512, causal), seq_q=seq_len, seq_k=seq_len)
        config = chosen(problem)
        assert config.broken_rule(ARCH) is None
        assert (config.dtype, config.d_head) == (dtype, d_head)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d_head", D_HEADS)
def test_there_is_room_for_a_bias(d_head: int, causal: bool) -> None:
    bias = torch.empty(16384, 16384, dtype=torch.bfloat16, device="meta")
    function = Function(lambda s, b, h, q, k: s + bias[q, k])
    for seq_len in (77, *LENGTHS, 16384):
        problem = replace(
            square(DType.BF16, d_head, 512, causal),
            seq_q=seq_len,
            seq_k=seq_len,
            program=function.program,
            bias=function.bias,
        )
        config = chosen(problem)
        assert config.broken_rule(ARCH) is None
        features = SM90.features(config, problem)
        assert features.bias
        assert config.smem_bytes() < features.smem_bytes(config) <= ARCH.max_smem_per_cta


@pytest.mark.parametrize(("adds_distance", "consumers"), [(False, 3), (True, 2)])
def test_scores_that_depend_on_a_bias_alone_have_three_consumers(
    adds_distance: bool, consumers: int
) -> None:
    bias = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    function = Function(lambda s, b, h, q, k: s + bias[q, k] + (q - k if adds_distance else 0))
    problem = replace(square(DType.BF16, 64, 4096), program=function.program, bias=function.bias)
    assert chosen(problem).consumers == consumers


@pytest.mark.parametrize("seq", [1, 512, 8192])
@pytest.mark.parametrize("d_head", D_HEADS)
@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_a_chosen_config_is_valid_and_serves_the_features(
    features: dict[str, Any], d_head: int, seq: int
) -> None:
    problem = replace(PROBLEM, seq_q=seq, seq_k=seq, d_head=d_head, d_v=d_head, **features)
    config = chosen(problem)
    config.check(ARCH)
    assert recipe_of(config, problem, num_sms=132).features == SM90.features(config, problem)
    assert config.d_head == d_head


@pytest.mark.parametrize(
    ("d_qk", "d_v", "compiled"),
    [
        (8, 8, 16),
        (40, 40, 48),
        (72, 40, 80),
        (40, 72, 80),
        (80, 80, 80),
        (104, 104, 112),
        (160, 160, 160),
        (192, 128, 192),
        (136, 200, 208),
        (256, 8, 256),
    ],
)
def test_a_kernel_is_as_wide_as_the_wider_of_two_head_dimensions(
    d_qk: int, d_v: int, compiled: int
) -> None:
    problem = replace(PROBLEM, d_head=d_qk, d_v=d_v)
    assert chosen(problem).d_head == hopper_d_head(problem) == compiled


def test_only_causal_problems_have_tiles_of_different_lengths() -> None:
    for config, causal in selected(DType.BF16):
        order = TileOrder.DYNAMIC if causal else TileOrder.PERSISTENT
        assert config.tile_order is order, config.short_form()


def test_masks_get_the_tiles_by_length() -> None:
    assert chosen(PROBLEM).tile_order is TileOrder.PERSISTENT
    for mask in MASKS[1:]:
        assert chosen(replace(PROBLEM, **mask)).tile_order is TileOrder.DYNAMIC


def test_packed_entries_of_any_length_have_one_config_if_they_are_not_short() -> None:
    for mask in MASKS:
        problem = replace(PACKED, **mask)
        assert len({chosen(replace(problem, seq_k=n)) for n in (513, 4096, 65536)}) == 1


def test_short_documents_have_tiles_of_one_warpgroup() -> None:
    for mask in MASKS:
        problem = replace(PACKED, **mask, seq_q=512)
        assert [chosen(replace(problem, seq_k=n)).consumers for n in (1, 512)] == [1, 1]
        assert chosen(replace(problem, seq_k=513)).consumers > 1
        wide = replace(problem, seq_k=512, d_head=256, d_v=256, total_q=40000, total_k=40000)
        assert chosen(replace(wide, batch=80)).consumers == 2


@pytest.mark.parametrize("d_head", D_HEADS)
def test_packed_entries_are_handed_out_and_without_a_mask_head_by_head(d_head: int) -> None:
    problem = replace(PACKED, d_head=d_head, d_v=d_head)
    configs = [chosen(replace(problem, **mask)) for mask in MASKS]
    assert {config.tile_order for config in configs} == {TileOrder.DYNAMIC}
    groups = [config.group_mib for config in configs]
    size = PACKED_GROUP_MIB if d_head <= 192 else WIDE_PACKED_GROUP_MIB
    assert groups == [0, size, size]
    assert "dynamic_0" in configs[0].words()


def test_where_there_is_no_kernel_it_is_said_why() -> None:
    wide = heuristic(replace(PROBLEM, d_v=264), ARCH)
    assert wide == "Hopper kernels have head dimensions up to 256"
    for name in set(ARCHES) - {"sm_90"}:
        assert heuristic(PROBLEM, ARCHES[name]) == "Hopper kernels need sm_90 (H100, H200)"
    tight = replace(ARCH, max_smem_per_cta=1024)
    assert "more than a CTA of sm_90 may have" in str(heuristic(PROBLEM, tight))


@pytest.mark.parametrize("page_keys", [1, 3, 8, 16, 32, 48, 64, 128, 192, 256])
@pytest.mark.parametrize("d_head", D_HEADS)
@pytest.mark.parametrize("causal", [False, True])
def test_long_queries_of_pages_have_a_config(page_keys: int, d_head: int, causal: bool) -> None:
    problem = replace(PROBLEM, seq_q=4096, d_head=d_head, d_v=d_head, causal=causal)
    problem = replace(problem, seqused_k=True, page_keys=page_keys, pages=1000)
    config = chosen(problem)
    config.check(ARCH)
    check_fits(config, problem, None)
    shared = gcd(page_keys, config.B_c)
    assert shared >= gcd(page_keys, 64) or shared == page_keys


@pytest.mark.parametrize("page_keys", [1, 3, 8, 16, 32, 48, 64, 128, 192, 256])
@pytest.mark.parametrize("d_head", D_HEADS)
@pytest.mark.parametrize("causal", [False, True])
def test_pages_of_8_bits_have_a_config(page_keys: int, d_head: int, causal: bool) -> None:
    problem = replace(PROBLEM, seq_q=4096, d_head=d_head, d_v=d_head, causal=causal)
    problem = replace(problem, seqused_k=True, page_keys=page_keys, pages=1000)
    config = chosen(replace(problem, kv_dtype=torch.float8_e4m3fn))
    config.check(ARCH)
    shared = gcd(page_keys, config.B_c)
    assert shared >= gcd(page_keys, min(64, 1 << config.B_c.bit_length() - 1))


def test_groups_are_powers_of_two_that_grow_with_the_keys_and_stay_in_l2() -> None:
    for d_head in D_HEADS:
        sizes = [group_mib(square(DType.BF16, d_head, n)) for n in (1, *LENGTHS)]
        assert all(size & (size - 1) == 0 for size in sizes)
        assert sizes[0] == 4
        assert max(sizes) <= 256
        heads = [
            size * (1 << 20) // (n * d_head * 4) for n, size in zip(LENGTHS, sizes[1:], strict=True)
        ]
        assert all(count >= 4 for count in heads), "a group of few heads does not balance a walk"


def test_all_heads_are_one_group_where_l2_holds_their_keys() -> None:
    def group(batch: int, heads: int, heads_k: int, n: int, d_head: int) -> int:
        problem = square(DType.BF16, d_head, n)
        return group_mib(replace(problem, batch=batch, heads=heads, heads_k=heads_k))

    assert group(1, 32, 32, 2048, 96) == 32  # 24 MiB, of which 16 would be 21 heads and 11 more
    assert group(1, 28, 4, 4096, 128) == 64  # 56 MiB as 28 heads count them, 8 in memory
    assert group(1, 32, 32, 2048, 80) == 32  # kernels of d 96 count 24 MiB
    assert group(8, 16, 16, 2048, 128) == 32  # 128 MiB: as many heads as L2 holds


@pytest.mark.parametrize(
    ("d_head", "causal", "rows", "consumers"),
    [
        (64, False, 384, 3),
        (64, False, 400, 1),  # 448 rows instead of 576, or of 512 of two
        (64, False, 512, 3),
        (64, False, 2048, 3),
        (64, True, 174, 3),  # 192 instead of 256
        (64, True, 409, 1),
        (64, True, 903, 3),  # 960 instead of 1024
        (64, True, 1024, 2),  # instead of 1152
        (80, True, 174, 3),
        (80, True, 256, 2),
        (88, False, 1305, 3),
        (112, False, 705, 3),
        (112, False, 256, 2),
        (128, True, 152, 3),
        (128, True, 1024, 2),
        (128, True, 4100, 2),
        (160, True, 136, 3),
    ],
)
def test_the_last_tile_wastes_few_rows(
    d_head: int, causal: bool, rows: int, consumers: int
) -> None:
    assert chosen(square(DType.BF16, d_head, rows, causal)).consumers == consumers


@pytest.mark.parametrize(
    ("lengths", "batch", "heads", "d_head", "consumers"),
    [
        ((1305, 1305), 1, 16, 128, 3),  # 112 tiles, one wave; those of two consumers take two
        ((512, 512), 1, 16, 128, 1),  # 128 tiles instead of 64, so that few stand idle
        ((354, 8192), 2, 32, 80, 3),
        ((473, 8192), 2, 16, 256, 2),
        ((128, 8192), 2, 16, 256, 1),
    ],
)
def test_few_tiles_take_few_waves(
    lengths: tuple[int, int], batch: int, heads: int, d_head: int, consumers: int
) -> None:
    sizes = (batch, *lengths, heads, heads, d_head, d_head)
    causal = lengths[0] < lengths[1]
    problem = Problem(*sizes, torch.bfloat16, d_head**-0.5, causal)
    assert chosen(problem).consumers == consumers


@pytest.mark.parametrize(
    "feature", [{"dropout_p": 0.1}, {"return_max": True}, {"softcap": 9.0, "return_max": True}]
)
def test_features_that_take_registers_have_two_consumers(feature: dict[str, Any]) -> None:
    problem = square(DType.BF16, 128, 152, causal=True)
    assert chosen(problem).consumers == 3
    assert chosen(replace(problem, **feature)).consumers < 3


def test_dropout_leaves_three_consumers_of_narrow_heads() -> None:
    problem = square(DType.BF16, 64, 152, causal=True)
    assert chosen(replace(problem, dropout_p=0.1)).consumers == 3


@pytest.mark.parametrize(
    ("rows", "d_head", "tile", "covered"),
    [
        (100, 64, (1, 112, 0), (128, 112)),
        (197, 64, (1, 112, 0), (256, 224)),  # 2 x 128 rows and keys cover 256 x 256
        (256, 64, (1, 128, 0), (256, 256)),
        (257, 64, (1, 96, 0), (320, 288)),  # 2 x 192 rows, 3 x 128 keys: 384 x 384
        (256, 80, (2, 128, 0), (256, 256)),
        (166, 80, (3, 96, 0), (192, 192)),
        (166, 96, (3, 96, 0), (192, 192)),
        (128, 96, (2, 128, 0), (128, 128)),
        (257, 80, (3, 96, 0), (320, 288)),  # one consumer of the last tile is skipped
        (320, 96, (3, 96, 32), (320, 320)),  # one consumer of the last tile is skipped
        (321, 64, (3, 128, 0), (384, 384)),
        (577, 64, (1, 112, 32), (640, 592)),
        (577, 80, (2, 128, 0), (640, 640)),
        (577, 128, (2, 128, 0), (640, 640)),
        (513, 128, (3, 80, 64), (576, 544)),
        (1024, 80, (2, 128, 0), (1024, 1024)),
        (1025, 64, (3, 128, 0), (1152, 1152)),  # the last block is one of many
    ],
)
def test_tiles_of_full_attention_fit_short_sequences(
    rows: int, d_head: int, tile: tuple[int, int, int], covered: tuple[int, int]
) -> None:
    """Tiles are (consumers, keys, narrow keys). They cover rows x keys of the scores of a head."""
    config = chosen(square(DType.BF16, d_head, rows))
    assert (config.consumers, config.B_c, config.narrow_keys) == tile
    whole, rest = divmod(rows, config.B_c)
    last = config.narrow_keys if 0 < rest <= config.narrow_keys else config.B_c * (rest > 0)
    unit = 64 if config.skip_empty else config.B_r
    assert (-(-rows // unit) * unit, whole * config.B_c + last) == covered


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [500, 4096])
@pytest.mark.parametrize("d_head", range(8, 257, 8))
def test_panels_are_wide_where_several_narrow_ones_would_split_sectors(
    d_head: int, rows: int, causal: bool
) -> None:
    config = chosen(square(DType.BF16, d_head, rows, causal))
    assert config.wide_panels == (d_head in (72, 88, 136, 152, 200, 216))


@pytest.mark.parametrize("causal", [False, True])
def test_tiles_without_a_buffer_for_o_store_from_registers(causal: bool) -> None:
    direct = {
        (d_head, rows): chosen(square(DType.BF16, d_head, rows, causal)).direct_output
        for d_head in (192, 240, 256)
        for rows in (512, 2048, 2049)
    }
    stored = [key for key, is_direct in direct.items() if is_direct]
    assert stored == [(192, 512), (192, 2048), (192, 2049), (256, 512), (256, 2048)]


@pytest.mark.parametrize("d_head", [16, 32, 48, 64])
def test_tiles_of_one_consumer_share_a_multiprocessor(d_head: int) -> None:
    """On 132 multiprocessors 32 x 16 heads of 257 rows are 2,560 tiles: 264 at a time."""
    problem = replace(square(DType.BF16, d_head, 257), batch=32)
    config = chosen(problem)
    assert (config.consumers, config.side_by_side) == (1, 2)
    recipe = recipe_of(config, problem, num_sms=132)
    assert (recipe.tiles, recipe.steps[0].geometry.grid) == (2560, (264, 1, 1))


def test_no_length_makes_tiles_of_three_hold_just_a_third_more() -> None:
    """So "over a third" and "a third or more" are the same rule."""
    ratios = {(-(-n // 192) * 192) / (-(-n // 128) * 128) for n in range(1, 4096)}
    assert {ratio for ratio in ratios if 1.2 < ratio < 1.5} == set()
    assert {1.2, 1.5} <= ratios
    assert max(ratios) == 1.5


@pytest.mark.parametrize(
    ("change", "side_by_side"),
    [
        ({}, True),
        ({"window": (255, 0)}, True),
        ({"window": (255, 1)}, False),
        ({"window": None}, False),
        ({"page_keys": 0, "pages": 0}, False),
        ({"d_head": 72, "d_v": 72}, False),
        ({"batch_invariant": True}, False),
    ],
)
def test_steps_with_a_short_window_have_two_tiles_side_by_side(
    change: dict[str, Any], side_by_side: bool
) -> None:
    step = Problem(*(9, 800, 9000, 64, 8, 64, 64, torch.bfloat16, 0.125), causal=True)
    paged: dict[str, Any] = {"total_q": 4000, "seqused_k": True, "page_keys": 16, "pages": 900}
    chosen = heuristic(replace(step, **(paged | {"window": (127, 0)} | change)), MEASURED_ARCH)
    assert isinstance(chosen, HopperForwardKernelConfig)
    assert (chosen.consumers == 1) is side_by_side
    assert not side_by_side or chosen.side_by_side == 2
