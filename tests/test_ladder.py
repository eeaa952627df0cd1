# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import pytest

from flash_attention.arch import ARCHES
from flash_attention.errors import KernelConfigError
from flash_attention.families.passes import Pass
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    TileOrder,
)
from flash_attention.ladder import LadderError, Rung, climb, get_ladder

LADDERS = [(dtype, d_head) for dtype in DType for d_head in (64, 128)]
FLASH_RUNGS = 16


@pytest.mark.parametrize("pass_", [Pass.FORWARD, Pass.BACKWARD])
@pytest.mark.parametrize(("dtype", "d_head"), LADDERS)
def test_adjacent_rungs_differ_in_exactly_one_field(dtype: DType, d_head: int, pass_: Pass) -> None:
    rungs = get_ladder(dtype, d_head, pass_=pass_)
    assert [rung.number for rung in rungs] == list(range(1, len(rungs) + 1))
    assert rungs[0].field is None
    for below, above in pairwise(rungs):
        if above.field == "family":
            assert type(below.config) is not type(above.config)
            continue
        differing = [
            f.name
            for f in fields(below.config)
            if getattr(below.config, f.name) != getattr(above.config, f.name)
        ]
        orders = [["tile_order", group] for group in ("group_mib", "group_heads")]
        assert differing in ([above.field], *orders)
        assert differing[0] == above.field


@pytest.mark.parametrize(("dtype", "d_head"), LADDERS)
def test_the_hopper_family_follows_the_sixteen_rungs_of_the_first(
    dtype: DType, d_head: int
) -> None:
    rungs = get_ladder(dtype, d_head)
    first, hopper = rungs[:FLASH_RUNGS], rungs[FLASH_RUNGS:]
    assert {type(rung.config) for rung in first} == {FlashForwardKernelConfig}
    assert {type(rung.config) for rung in hopper} == {HopperForwardKernelConfig}
    assert [rung.number for rung in rungs if rung.field == "family"] == [FLASH_RUNGS + 1]


@pytest.mark.parametrize(("dtype", "d_head"), LADDERS)
def test_every_rung_is_valid_wherever_its_family_is(dtype: DType, d_head: int) -> None:
    for rung in get_ladder(dtype, d_head):
        valid = {a.name for a in ARCHES.values() if not rung.config.broken_rule(a)}
        expected = set(ARCHES) if rung.number <= FLASH_RUNGS else {"sm_90"}
        assert valid == expected, rung.name
        assert (rung.config.dtype, rung.config.d_head) == (dtype, d_head)


@pytest.mark.parametrize(("dtype", "d_head"), LADDERS)
def test_the_backward_ladder_has_both_families_and_ends_with_a_causal_rung(
    dtype: DType, d_head: int
) -> None:
    rungs = get_ladder(dtype, d_head, pass_=Pass.BACKWARD)
    kinds = [type(rung.config) for rung in rungs]
    assert kinds[:10] == [FlashBackwardKernelConfig] * 10
    assert set(kinds[10:]) == {HopperBackwardKernelConfig}
    assert [rung.number for rung in rungs if rung.field == "family"] == [11]
    assert len(rungs) >= 18
    assert [rung.causal for rung in rungs] == sorted(rung.causal for rung in rungs)
    assert rungs[-1].causal
    for rung in rungs:
        assert (rung.config.dtype, rung.config.d_head) == (dtype, d_head)
        rung.config.check()


@pytest.mark.parametrize("d_head", [64, 128])
@pytest.mark.parametrize("pass_", [Pass.FORWARD, Pass.BACKWARD])
def test_rungs_have_names_and_ideas_of_their_own(pass_: Pass, d_head: int) -> None:
    rungs = get_ladder(d_head=d_head, pass_=pass_)
    assert len({rung.name for rung in rungs}) == len({rung.idea for rung in rungs}) == len(rungs)


def test_the_last_rung_of_the_first_family_follows_the_number_of_heads() -> None:
    config = get_ladder(d_head=64, n_heads=12)[FLASH_RUNGS - 1].config
    assert isinstance(config, FlashForwardKernelConfig)
    assert config.static_row_stride == 12 * 64


def test_a_step_may_change_the_tile_order_with_its_group() -> None:
    base = get_ladder()[-1]
    change = {"tile_order": TileOrder.PERSISTENT, "group_mib": 0}
    _, above = climb(base, ("in order", "tiles by index", change))
    assert (above.number, above.field) == (base.number + 1, "tile_order")
    assert above.config.short_form() == base.config.short_form().replace("dynamic_32", "persistent")


@pytest.mark.parametrize(
    "change",
    [{"swizzled": True, "async_copy": False}, {}, {"swizzled": False}],
    ids=["two fields", "none", "same value"],
)
def test_a_step_that_is_not_one_change_is_refused(change: dict[str, bool]) -> None:
    base: Rung = get_ladder()[0]
    with pytest.raises(LadderError, match="exactly one field"):
        climb(base, ("broken", "not a step", change))


def test_a_head_dimension_without_a_ladder_is_refused() -> None:
    for d_head in (0, -1, 96, 10**30):
        with pytest.raises(KernelConfigError, match=f"no ladder for d_head {d_head} .* 64 or 128"):
            get_ladder(d_head=d_head)
