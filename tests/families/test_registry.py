# SPDX-License-Identifier: Apache-2.0
"""The families that are known: whose a config is, and the unit that it becomes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.call.features import CAUSAL, Features
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families import registry
from flash_attention.families.passes import Pass
from flash_attention.families.registry import (
    FAMILIES,
    check_config_type,
    check_pass,
    family_of,
    register,
    unit_of,
)
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm80.forward.family import SM80, Sm80Forward
from flash_attention.families.sm90.forward.family import SM90
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
    sort_key,
)

FLASH = FlashForwardKernelConfig(DType.BF16, 128, 64, 32, 4, True, True, True, 2, 2, 0, True, True)
HOPPER = HopperForwardKernelConfig(DType.BF16, 128, 2, 128, 1)
GRADIENTS = FlashBackwardKernelConfig(DType.BF16, 128, 64, 64, 4)


@dataclass(frozen=True, order=True)
class OwnConfig(FlashForwardKernelConfig):
    """A config of a family that someone else wrote."""


def own(config: FlashForwardKernelConfig = FLASH) -> OwnConfig:
    return OwnConfig(**vars(config))


def test_configs_are_sorted_family_by_family_and_then_in_their_own_order() -> None:
    fp16: list[KernelConfig] = [replace(FLASH, dtype=DType.FP16), replace(HOPPER, dtype=DType.FP16)]
    mixed: list[KernelConfig] = [HOPPER, FLASH, *reversed(fp16)]
    assert sorted(mixed, key=sort_key) == [fp16[0], FLASH, fp16[1], HOPPER]


def test_a_config_belongs_to_the_family_of_its_very_type() -> None:
    assert [family.name for family in FAMILIES[:2]] == ["sm_80", "sm_90"]
    assert (family_of(FLASH), family_of(HOPPER)) == (SM80, SM90)
    with pytest.raises(
        KernelConfigError, match=r"OwnConfig is of no family .* register its"
    ) as error:
        family_of(own())
    assert error.value.rule == "type"
    nothing: Any = None
    with pytest.raises(KernelConfigError, match="is a NoneType; pass a FlashForwardKernelConfig"):
        family_of(nothing)


@pytest.mark.parametrize("thing", [None, 3, "(FP16, 128, 64, 32, 4)", {}, OwnConfig])
@pytest.mark.parametrize(
    ("which", "types"),
    [
        (Pass.FORWARD, ("FlashForward", "HopperForward", "HopperFp8", "HopperWide", "HopperMla")),
        (Pass.BACKWARD, ("FlashBackward", "HopperBackward", "HopperWideBackward")),
    ],
)
def test_what_is_no_config_is_refused_with_the_configs_of_the_pass(
    which: Pass, types: tuple[str, ...], thing: object
) -> None:
    named = " or ".join(f"a {name}KernelConfig" for name in types)
    message = f"pass {named}, its short form, or a"
    with pytest.raises(KernelConfigError, match=message) as caught:
        check_config_type(thing, which)
    assert caught.value.rule == "type"
    assert type(thing).__name__ in str(caught.value)


def test_a_config_of_the_other_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class OwnFamily(Sm80Forward):
        pass_ = Pass.BACKWARD
        config_type = OwnConfig

    check_pass(FLASH, Pass.FORWARD)
    monkeypatch.setattr(registry, "FAMILIES", [SM80, SM90, OwnFamily()])
    check_pass(own(), Pass.BACKWARD)
    with pytest.raises(
        KernelConfigError,
        match="a FlashForwardKernelConfig, a config of the forward pass; pass an Own",
    ) as error:
        check_pass(FLASH, Pass.BACKWARD)
    assert error.value.rule == "pass"
    with pytest.raises(
        KernelConfigError,
        match="a config of the backward pass; pass a FlashForwardKernelConfig or a HopperForward",
    ):
        check_pass(own(), Pass.FORWARD)


def test_a_family_that_is_registered_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    class OwnFamily(Sm80Forward):
        name = "own"
        config_type = OwnConfig

    monkeypatch.setattr(registry, "FAMILIES", [*FAMILIES])
    family = OwnFamily()
    register(family)
    assert registry.FAMILIES[-1] is family
    assert family_of(own()) is family
    assert family_of(FLASH) is SM80
    mixed: list[KernelConfig] = [own(), HOPPER, FLASH]
    assert sorted(mixed, key=sort_key) == [FLASH, HOPPER, own()]


def test_a_unit_is_of_the_features_that_the_family_resolved() -> None:
    causal = unit_of(HOPPER, CAUSAL)
    assert causal == SM90.unit(HOPPER, SM90.resolve(HOPPER, CAUSAL), ARCHES["sm_90"])
    assert (unit_of(FLASH).target, causal.target) == ("sm_80", "sm_90a")
    assert unit_of(FLASH, arch=ARCHES["sm_120"]).target == "sm_120"
    with pytest.raises(UnsupportedError, match="block_table is asked for"):
        unit_of(GRADIENTS, Features(page_keys=16))
