# SPDX-License-Identifier: Apache-2.0
"""The family of kernels for tangents: what it refuses, its launches, and what is tuned."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from flash_attention import TileOrder, UnsupportedError
from flash_attention.arch import MEASURED_ARCH
from flash_attention.call.dtype import DType
from flash_attention.call.features import Features, MaskKind
from flash_attention.call.tangent_call import check_tangent_call
from flash_attention.choose.rules import choose
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Setting
from flash_attention.families.registry import families_for, family_of, pass_of
from flash_attention.families.sm90.tangent.family import SM90_TANGENT
from flash_attention.families.values import Violation
from tests.families.sm90.tangent.cases import USUAL, TangentCase

SETTING = Setting(MEASURED_ARCH, 132)


def test_a_problem_with_tangents_is_of_this_family_alone() -> None:
    problem, views = check_tangent_call(TangentCase("", 300, 300, heads=2).make())
    assert pass_of(problem) is Pass.TANGENT
    assert families_for(problem, Pass.TANGENT, views) == [SM90_TANGENT]
    assert choose(problem, SETTING, views).config == USUAL
    assert family_of(USUAL) is SM90_TANGENT


@pytest.mark.parametrize(
    ("order", "ctas", "counts"),
    [
        (TileOrder.DYNAMIC, 132, True),
        (TileOrder.PERSISTENT, 132, False),
        (TileOrder.ONE_EACH, 240, False),
    ],
)
def test_the_grid_follows_from_the_order_of_tiles(
    order: TileOrder, ctas: int, counts: bool
) -> None:
    problem, views = check_tangent_call(TangentCase("", 1000, 200, batch=5, heads=6).make())
    config = replace(USUAL, tile_order=order, group_mib=32 * (order is TileOrder.DYNAMIC))
    recipe = SM90_TANGENT.recipe(config, problem, views, SETTING)
    (step,) = recipe.steps
    assert step.geometry.grid == (ctas, 1, 1)
    assert (recipe.tiles, recipe.counts_tiles) == (240, counts)
    assert list(step.maps) == ["q", "k", "v", "q_tangent", "k_tangent", "v_tangent"]
    assert step.maps["k_tangent"].box == (64, 1, config.B_c, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": DType.FP16, "rescale_threshold": 0}, "is for torch.float16, the tensors are"),
        ({}, "is for d_head up to 64, q and k have d_head 128"),
    ],
)
def test_a_config_of_other_tensors_is_refused(changes: dict[str, Any], message: str) -> None:
    problem, views = check_tangent_call(TangentCase("", 9, 9, 64 if changes else 128).make())
    with pytest.raises(UnsupportedError, match=message):
        SM90_TANGENT.recipe(replace(USUAL, **changes), problem, views, SETTING)


def test_what_kernels_lack_is_refused() -> None:
    windowed = Features(MaskKind.WINDOW, softcap=True)
    assert SM90_TANGENT.resolve(USUAL, windowed) == windowed
    with pytest.raises(UnsupportedError, match="per_batch, sinks are asked for, and kernels for"):
        SM90_TANGENT.resolve(USUAL, replace(windowed, per_batch=True, sinks=True))


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize(("d_head", "count"), [(64, 78), (128, 26)])
def test_the_search_space_has_every_tile_that_fits(dtype: DType, d_head: int, count: int) -> None:
    found = list(SM90_TANGENT.combinations(dtype, d_head))
    fallen = Counter(one.rule for one in found if isinstance(one, Violation))
    configs = [one for one in found if not isinstance(one, Violation)]
    assert set(fallen) == {"registers", "shared_memory"}
    assert len(found) == 2 * 8 * 4 * 2
    assert len(configs) == len(set(configs)) == count
    mine = [c for c in SM90_TANGENT.search_space() if (c.dtype, c.d_head) == (dtype, d_head)]
    assert mine == configs


def test_neighbours_are_one_step_away() -> None:
    near = {config.short_form() for config in SM90_TANGENT.neighbours(USUAL)}
    assert near == {
        "hopper_tangent(BF16, 64, 2, 80, 2): lazy_8+dynamic_32",
        "hopper_tangent(BF16, 64, 2, 112, 2): lazy_8+dynamic_32",
        "hopper_tangent(BF16, 64, 2, 96, 1): lazy_8+dynamic_32",
        "hopper_tangent(BF16, 64, 2, 96, 3): lazy_8+dynamic_32",
        "hopper_tangent(BF16, 64, 2, 96, 2): lazy_8+dynamic_16",
        "hopper_tangent(BF16, 64, 2, 96, 2): lazy_8+dynamic_64",
        "hopper_tangent(BF16, 64, 2, 96, 2): lazy_8+persistent",
    }
