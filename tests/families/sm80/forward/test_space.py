# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import Counter
from itertools import islice
from math import prod

import pytest

from flash_attention.families.fields import choices
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig
from flash_attention.families.sm80.forward.space import (
    FINISH,
    SEARCH_SPACE,
    combinations,
    likeliest_first,
    neighbours,
    sample_configs,
    search_space,
)
from flash_attention.families.values import Violation
from flash_attention.kernel_configs import DType, parse_kernel_config

BEST = parse_kernel_config(
    "(FP16, 128, 128, 32, 4): async+eager+swizzled+load_2_2_1_tiles+buffer+opt_softmax+folded"
    "+serpentine+staged+reciprocal+panels"
)


def test_every_dimension_is_searched_either_way_round() -> None:
    configs = list(search_space())
    assert len(configs) == len(set(configs))
    for field, values in SEARCH_SPACE.items():
        assert {getattr(config, field) for config in configs} == set(values), field
    one_way = [config for config in configs if not config.reverse_kv]
    assert len(one_way) == len(configs) - len(one_way) == 5616


@pytest.mark.parametrize(
    ("d_head", "fallen"),
    [
        (64, {"warp_rows": 1152, "eager_needs_async": 1536, "registers": 168}),
        (128, {"warp_rows": 1152, "eager_needs_async": 1536, "registers": 696}),
    ],
)
def test_a_combination_is_a_config_or_falls_to_a_rule(d_head: int, fallen: dict[str, int]) -> None:
    both = list(combinations(DType.BF16, d_head))
    assert len(both) == prod(map(len, SEARCH_SPACE.values())) == 6144
    rules = Counter(one.rule for one in both if isinstance(one, Violation))
    assert rules == {**fallen, "double_buffer_needs_tiles": 216}
    valid = [one for one in both if not isinstance(one, Violation)]
    assert len(valid) == 6144 - sum(rules.values())
    assert all(getattr(config, name) == value for config in valid for name, value in FINISH.items())


def test_the_steps_from_a_config_change_one_choice() -> None:
    assert isinstance(BEST, FlashForwardKernelConfig)
    near = neighbours(BEST)
    assert len(near) == len(set(near)) >= 20
    assert BEST not in near
    values = choices(FlashForwardKernelConfig)
    everything = {name for name in values if values[name] != (False, True)} - {"dtype", "d_head"}
    changed = [
        frozenset(name for name in vars(BEST) if getattr(one, name) != getattr(BEST, name))
        for one in near
    ]
    assert all(len(names) == 1 or names <= {"B_r", "B_c", "n_warps"} for names in changed)
    assert everything - {"B_r"} <= frozenset().union(*changed)
    assert "dtype" not in frozenset().union(*changed)


def test_the_likeliest_configs_differ_least_from_the_first() -> None:
    assert isinstance(BEST, FlashForwardKernelConfig)
    found = [c for c in search_space() if (c.dtype, c.d_head) == (BEST.dtype, BEST.d_head)]
    ordered = likeliest_first(BEST, reversed(found))
    assert sorted(ordered) == sorted(found)
    assert {c.V_mma_load_K_tiles for c in ordered[:2]} == {0, 2}
    assert [c.short_form().split(": ")[0] for c in ordered[:2]] == ["(FP16, 128, 128, 32, 4)"] * 2
    assert not ordered[-1].async_copy
    assert not ordered[-1].optimized_softmax


def test_samples_are_valid_varied_and_repeatable() -> None:
    drawn = list(islice(sample_configs(1, row_strides=(0, 1024)), 300))
    assert drawn == list(islice(sample_configs(1, row_strides=(0, 1024)), 300))
    assert all(cfg.broken_rule() is None for cfg in drawn)
    assert len(set(drawn)) == 300
    assert {cfg.static_row_stride for cfg in drawn} == {0, 1024}
    assert {cfg.async_copy for cfg in drawn} == {False, True}
    assert {cfg.B_c for cfg in drawn} == {32, 64, 128}
