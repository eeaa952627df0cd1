# SPDX-License-Identifier: Apache-2.0
"""What follows from the declarations of all fields of all families, whichever there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.compile.binding import Number, Variant
from flash_attention.families.config import KernelConfig, changed
from flash_attention.families.fields import as_number, choices, declarations, variant
from flash_attention.families.neighbours import neighbours_of
from flash_attention.families.registry import FAMILIES, AnyFamily, family_of, unit_of
from flash_attention.kernel_configs import (
    DType,
    HopperForwardKernelConfig,
    get_kernels_to_build,
    parse_kernel_config,
    parse_kernel_name,
)
from tests.unchecked import unchecked

SM90 = ARCHES["sm_90"]
IMPLIED = {("HopperBackwardKernelConfig", "B_c")}
"""Fields whose value follows from the others, so that none changes alone."""
BESIDE = {("HopperWideBackwardKernelConfig", "d_head")}
"""Fields that only the kernels beside the main one are compiled for."""
FORMS = (
    "hopper(BF16, 64, 2, 64, 2): tma+specialised+kv_8_bit",
    "hopper(BF16, 64, 1, 64, 2): tma+specialised+kv_8_bit+q_8_bit",
    "hopper_fp8(BF16, 64, 2, 64, 2): tensor_sums+persistent",
)
"""Configs with fields that those of `build` do not have, or not alone."""
FIELDS = [
    pytest.param(family, name, id=f"{family.config_type.__name__}.{name}")
    for family in FAMILIES
    for name in declarations(family.config_type)
    if (family.config_type.__name__, name) not in IMPLIED | BESIDE
]


@cache
def some_configs(family: AnyFamily) -> tuple[KernelConfig, ...]:
    """Configs of FORMS, and some that `build` compiles, a hundred at most."""
    built = [c for c in get_kernels_to_build(SM90, family.pass_) if family_of(c) is family]
    others = (c for c in map(parse_kernel_config, FORMS) if family_of(c) is family)
    return (*others, *built[:: len(built) // 100 + 1])


def one_apart(family: AnyFamily, name: str) -> Iterator[tuple[KernelConfig, KernelConfig]]:
    """Pairs of valid configs that differ in a field."""
    values = choices(family.config_type).get(name, (0, 2048))
    for config in some_configs(family):
        for value in (*values[:2], *values[-1:]):
            other = changed(config, **{name: value})
            if other is not None and other != config:
                yield config, other


@pytest.mark.parametrize(("family", "name"), FIELDS)
def test_a_field_changes_the_source_and_every_name(family: AnyFamily, name: str) -> None:
    one, other = next(one_apart(family, name))
    assert unit_of(one, arch=SM90).source != unit_of(other, arch=SM90).source
    assert without_comments(one) != without_comments(other)
    for config in (one, other):
        assert parse_kernel_config(config.short_form()) == config
        assert parse_kernel_name(config.kernel_name() + "_causal") == config
    assert one.short_form() != other.short_form()
    assert one.kernel_name() != other.kernel_name()


def without_comments(config: KernelConfig) -> str:
    """The source of a config's kernel without its short form and its name."""
    source = unit_of(config, arch=SM90).source
    return source.replace(config.short_form(), "").replace(config.kernel_name(), "")


@pytest.mark.parametrize(("family", "name"), FIELDS)
def test_a_field_that_needs_another_is_refused_without_it(family: AnyFamily, name: str) -> None:
    declared = declarations(family.config_type)[name]
    for need in declared.needs:
        having = (c for pair in one_apart(family, name) for c in pair)
        config = next(c for c in having if getattr(c, name) != declared.off)
        (without, *_) = (v for v in choices(family.config_type)[need.field] if v != need.value)
        broken = {one.rule for one in unchecked(config, **{need.field: without}).violations(SM90)}
        assert (need.rule or f"{name}_needs_{need.field}") in broken


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.config_type.__name__)
def test_every_field_is_described_and_a_wrong_value_is_refused(family: AnyFamily) -> None:
    config = some_configs(family)[0]
    for name, declared in declarations(family.config_type).items():
        assert declared.what, name
        first = next(unchecked(config, **{name: "x"}).violations(SM90))
        assert (first.rule, first.message[: len(name) + 10]) == (name, f"{name}='x': use ")


def test_how_a_value_is_bound() -> None:
    def bound(bind: Any, value: int) -> Any:
        return bind(type("Config", (), {"rows": value}), "rows")

    assert bound(as_number(), 8) == Number("rows", 8)
    assert bound(as_number("all_rows", 3), True) == Number("all_rows", 3)
    rescale = variant("Rescale", "attn/rescale", off="EveryBlock", on="Lazy")
    assert bound(rescale, 0) == bound(rescale, False)
    assert bound(rescale, 0) == Variant("Rescale", "attn/rescale", "EveryBlock")
    assert bound(rescale, True) == Variant("Rescale", "attn/rescale", "Lazy")
    assert bound(rescale, 1) == Variant("Rescale", "attn/rescale", "Lazy", 1)


OF_8_BITS = ("kv_8_bit", "q_8_bit", "scores_8_bit")


def test_neighbours_differ_in_one_field() -> None:
    config = HopperForwardKernelConfig(DType.BF16, 64, 2, 64, 2, tma=True, specialised=True)
    near = neighbours_of(
        config,
        fixed=("consumers", "tile_order", "rescale_threshold", *OF_8_BITS, "group_mib"),
        values={"narrow_keys": (16, 32)},
        together=[{"B_c": 128, "overlap": True}],
    )
    steps: list[dict[str, Any]] = [
        *({"B_c": 48}, {"B_c": 80}, {"stages": 1}, {"stages": 3}, {"ping_pong": True}),
        *({"overlap": True}, {"own_output": True}, {"direct_output": True}),
        *({"narrow_keys": 16}, {"narrow_keys": 32}, {"prefetch_q": True}, {"skip_empty": True}),
        {"B_c": 128, "overlap": True},
    ]
    assert near == [replace(config, **step) for step in steps]
    every = neighbours_of(config, fixed=set(choices(type(config))) - {"stages"}, every=True)
    assert every == [replace(config, stages=stages) for stages in (1, 3, 4)]
