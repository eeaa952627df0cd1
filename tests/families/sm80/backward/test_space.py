# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import islice

import pytest

from flash_attention.arch import ARCHES
from flash_attention.call.dtype import DType
from flash_attention.families.fields import choices
from flash_attention.families.sm80.backward.config import D_HEADS, FlashBackwardKernelConfig
from flash_attention.families.sm80.backward.space import (
    SEARCH_SPACE,
    combinations,
    neighbours,
    sample_configs,
    search_space,
)
from flash_attention.families.values import Violation


def test_every_dimension_is_searched() -> None:
    configs = list(search_space())
    assert len(configs) == len(set(configs))
    for field, values in SEARCH_SPACE.items():
        assert {getattr(config, field) for config in configs} == set(values), field


@pytest.mark.parametrize("d_head", D_HEADS)
def test_every_head_dimension_has_configs_and_what_is_left_out_breaks_a_rule(d_head: int) -> None:
    found = list(combinations(DType.BF16, d_head))
    left_out = [one for one in found if isinstance(one, Violation)]
    assert len(found) - len(left_out) > 10
    assert {one.rule for one in left_out} >= {"warp_rows", "dq_warps", "registers_need_rows"}


def test_neighbours_differ_in_one_field() -> None:
    config = next(search_space())
    near = neighbours(config)
    assert len(near) == len(set(near)) > 8
    for other in near:
        assert (other.dtype, other.d_head) == (config.dtype, config.d_head)
        differ = [name for name in vars(config) if getattr(config, name) != getattr(other, name)]
        assert len(differ) == 1


def test_samples_are_valid_and_reach_every_value() -> None:
    drawn = list(islice(sample_configs(3, ARCHES["sm_90"]), 300))
    assert all(config.broken_rule(ARCHES["sm_90"]) is None for config in drawn)
    for field, values in choices(FlashBackwardKernelConfig).items():
        assert {getattr(config, field) for config in drawn} == set(values), field
