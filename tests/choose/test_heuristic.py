# SPDX-License-Identifier: Apache-2.0
"""What is selected: a valid config of the right family, and one that knows the problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES, Arch
from flash_attention.choose.heuristic import group_mib, select_config
from flash_attention.errors import UnsupportedError
from flash_attention.families.fit import check_config_fits
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    TileOrder,
)
from tests.hopper_configs import D_HEADS, LENGTHS, selected, square

SM90 = ARCHES["sm_90"]
OTHERS = [arch for name, arch in ARCHES.items() if name != "sm_90"]


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d_head", D_HEADS)
def test_sm_90_gets_a_valid_hopper_config_at_every_length(
    d_head: int, causal: bool, dtype: DType
) -> None:
    for seq_len in (1, 77, *LENGTHS, 1 << 20):
        problem = replace(square(dtype, d_head, 512, causal), seq_q=seq_len, seq_k=seq_len)
        config = select_config(problem, SM90)
        assert isinstance(config, HopperForwardKernelConfig)
        assert config.broken_rule(SM90) is None
        assert (config.dtype, config.d_head) == (dtype, d_head)


def test_only_causal_problems_have_tiles_of_different_lengths() -> None:
    for config, causal in selected(DType.BF16):
        order = TileOrder.DYNAMIC if causal else TileOrder.PERSISTENT
        assert config.tile_order is order, config.short_form()


@pytest.mark.parametrize(
    "change",
    [{"seq_q": 1}, {"seq_k": 1}, {"seq_q": 0}, {"heads": 48}, {"batch": 0}],
    ids=lambda change: str(change),
)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_queries_and_keys_may_differ_on_sm_90(change: dict[str, Any], causal: bool) -> None:
    problem = replace(square(DType.FP16, 128, 512, causal), **change)
    assert isinstance(select_config(problem, SM90), HopperForwardKernelConfig)


CHANGES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (100, 0), "softcap": 30.0, "sinks": True},
    {"d_head": 96, "d_v": 40},
    {"d_head": 8, "d_v": 8},
    {"d_head": 136, "d_v": 136},
    {"d_head": 256, "d_v": 256},
    {"seq_q": 1, "d_head": 256, "d_v": 256},
    {"seq_q": 500, "seq_k": 77},
    {"heads_k": 4},
    {"total_q": 900, "total_k": 800},
]


@pytest.mark.parametrize("arch", OTHERS, ids=lambda arch: arch.name)
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_other_architectures_get_the_first_family(change: dict[str, Any], arch: Arch) -> None:
    problem = replace(square(DType.BF16, 128, 512), **change)
    config = select_config(problem, arch)
    assert isinstance(config, FlashForwardKernelConfig)
    assert config.broken_rule(arch) is None
    assert config.d_head >= max(problem.d_head, problem.d_v)
    check_config_fits(config, problem, ())
    assert isinstance(select_config(problem, SM90), HopperForwardKernelConfig)


@pytest.mark.parametrize(
    ("d_head", "compiled"), [(8, 64), (64, 64), (72, 128), (136, 192), (200, 256)]
)
def test_the_first_familys_kernel_is_as_wide_as_need_be(d_head: int, compiled: int) -> None:
    problem = square(DType.FP16, d_head, 512)
    for wider in (problem, replace(problem, d_head=8), replace(problem, d_v=8)):
        assert select_config(wider, ARCHES["sm_80"]).d_head == compiled


@pytest.mark.parametrize("d_head", [64, 128, 256])
def test_few_queries_get_short_tiles(d_head: int) -> None:
    problem = square(DType.FP16, d_head, 512)
    rows = [select_config(replace(problem, seq_q=n), ARCHES["sm_86"]).B_r for n in (1, 64, 65)]
    assert rows == [64, 64, 128]


@pytest.mark.parametrize("arch", OTHERS, ids=lambda arch: arch.name)
def test_pages_are_for_sm_90(arch: Arch) -> None:
    problem = replace(square(DType.FP16, 128, 512), seqused_k=True, page_keys=64, pages=8)
    with pytest.raises(UnsupportedError, match=rf"on {arch.name}: .*block_table needs sm_90"):
        select_config(problem, arch)


def test_a_head_dimension_of_neither_family_is_refused_everywhere() -> None:
    for arch in ARCHES.values():
        with pytest.raises(UnsupportedError, match="d_head is at most 256"):
            select_config(square(DType.FP16, 264, 512), arch)


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


def test_two_consumers_where_tiles_of_three_would_be_half_empty() -> None:
    def consumers(rows: int) -> int:
        config = select_config(square(DType.BF16, 64, rows), ARCHES["sm_90"])
        assert isinstance(config, HopperForwardKernelConfig)
        return config.consumers

    assert [consumers(n) for n in (100, 128, 192, 197, 256, 257, 400, 577, 2048)] == (
        [2, 2, 3, 2, 2, 3, 3, 3, 3]
    )
