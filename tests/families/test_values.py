# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.families.fields import (
    Needs,
    element_type,
    kernel_config,
    number,
    switch,
)
from flash_attention.families.values import (
    Violation,
    not_hopper,
    smallest_holding,
    too_large,
    unmet_needs,
    wrong_values,
)
from flash_attention.kernel_configs import DType

NEED = Needs("swizzled", "reads swizzled rows")


@kernel_config
class Config:
    """One field of each kind."""

    dtype: DType = element_type("the element type")
    rows: int = number("rows", (64, 128))
    keys: int = number("keys", range(16, 65, 16), default=16)
    share: int = number("a share", range(9), default=0, needs=(NEED,))
    offset: int = number("an offset", default=7)
    swizzled: bool = switch("swizzle", default=False)
    folded: bool = switch("fold", default=False, needs=(NEED, Needs("keys", "is short", 32, "id")))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("dtype", "fp16", "dtype='fp16': use DType.FP16 or DType.BF16"),
        ("dtype", 5, "dtype=5: use DType.FP16 or DType.BF16"),
        ("rows", 96, "rows=96: use one of 64, 128"),
        ("rows", 64.0, "rows=64.0: use one of 64, 128"),
        ("keys", 24, "keys=24: use a multiple of 16 from 16 to 64"),
        ("keys", 80, "keys=80: use a multiple of 16 from 16 to 64"),
        ("share", -1, "share=-1: use an integer from 0 to 8"),
        ("share", True, "share=True: use an integer from 0 to 8"),
        ("offset", 1.5, "offset=1.5: use an integer"),
        ("offset", None, "offset=None: use an integer"),
        ("offset", False, "offset=False: use an integer"),
        ("swizzled", 1, "swizzled=1: use True or False"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(field: str, value: Any, says: str) -> None:
    (violation,) = wrong_values(Config(**{"dtype": DType.FP16, "rows": 64, field: value}))
    assert (violation.rule, violation.message) == (field, says)


def test_allowed_values_pass() -> None:
    good = [Config(DType.FP16, 64), Config(DType.BF16, 128, 64, 8, -3, True)]
    assert [list(wrong_values(cfg)) for cfg in good] == [[], []]


def test_a_field_that_is_not_off_says_what_it_needs() -> None:
    config = Config(DType.FP16, 64, share=3, folded=True)
    assert [(one.rule, one.message) for one in unmet_needs(config)] == [
        (
            "share_needs_swizzled",
            "share=3 reads swizzled rows: set swizzled=True or share=0",
        ),
        (
            "folded_needs_swizzled",
            "folded=True reads swizzled rows: set swizzled=True or folded=False",
        ),
        ("id", "folded=True is short: set keys=32 or folded=False"),
    ]
    met = Config(DType.FP16, 64, keys=32, share=3, swizzled=True, folded=True)
    assert list(unmet_needs(met)) == list(unmet_needs(Config(DType.FP16, 64))) == []


def test_an_architecture_may_have_too_little_memory_or_other_instructions() -> None:
    sm80, sm90 = ARCHES["sm_80"], ARCHES["sm_90"]
    assert list(too_large("tiles", sm80.max_smem_per_cta, sm80, "use less")) == []
    (large,) = too_large("tiles", sm80.max_smem_per_cta + 16, sm80, "use less")
    assert large.rule == "shared_memory"
    assert large.message == (
        f"tiles take {sm80.max_smem_per_cta + 16} bytes of shared memory, 16 more than a CTA of"
        f" sm_80 may have ({sm80.max_smem_per_cta}): use less"
    )
    assert list(not_hopper(sm90, "it")) == []
    assert list(not_hopper(sm80, "it", "another")) == [
        Violation("architecture", "it needs sm_90 (H100, H200), this is sm_80: use another")
    ]


@pytest.mark.parametrize(
    ("values", "smallest"), [((8, 8), 64), ((64, 65), 96), ((65, 64), 96), ((96,), 96), ((97,), 0)]
)
def test_the_smallest_choice_that_holds_every_value(values: tuple[int, ...], smallest: int) -> None:
    assert smallest_holding((96, 64), *values) == smallest
