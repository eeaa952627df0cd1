# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import islice
from math import prod

from flash_attention.families.sm80.forward.space import SEARCH_SPACE, sample_configs, search_space


def test_the_search_space_is_the_product_and_most_of_it_is_valid() -> None:
    configs = list(search_space())
    assert len(configs) == len(set(configs)) == prod(map(len, SEARCH_SPACE.values()))
    valid = [config for config in configs if config.broken_rule() is None]
    assert 0 < len(valid) < len(configs)
    for field, values in SEARCH_SPACE.items():
        assert {getattr(config, field) for config in valid} == set(values), field


def test_samples_are_valid_varied_and_repeatable() -> None:
    drawn = list(islice(sample_configs(1, row_strides=(0, 1024)), 300))
    assert drawn == list(islice(sample_configs(1, row_strides=(0, 1024)), 300))
    assert all(cfg.broken_rule() is None for cfg in drawn)
    assert len(set(drawn)) == 300
    assert {cfg.static_row_stride for cfg in drawn} == {0, 1024}
    assert {cfg.async_copy for cfg in drawn} == {False, True}
    assert {cfg.B_c for cfg in drawn} == {32, 64, 128}
