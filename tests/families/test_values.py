# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from flash_attention.families.values import Choices, smallest_holding, wrong_values
from flash_attention.kernel_configs import DType

CHOICES: Choices = {"rows": (64, 128), "keys": range(16, 65, 16), "share": range(9)}


@dataclass(frozen=True)
class Config:
    dtype: DType = DType.FP16
    rows: int = 64
    keys: int = 16
    share: int = 0
    offset: int = 7
    swizzled: bool = False


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
        ("swizzled", 1, "swizzled=1: use True or False"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(field: str, value: Any, says: str) -> None:
    (violation,) = wrong_values(Config(**{field: value}), CHOICES)
    assert (violation.rule, violation.message) == (field, says)


def test_allowed_values_pass() -> None:
    good = [Config(), Config(DType.BF16, 128, 64, 8, -3, True)]
    assert [list(wrong_values(cfg, CHOICES)) for cfg in good] == [[], []]


@pytest.mark.parametrize(
    ("values", "smallest"), [((8, 8), 64), ((64, 65), 96), ((65, 64), 96), ((96,), 96), ((97,), 0)]
)
def test_the_smallest_choice_that_holds_every_value(values: tuple[int, ...], smallest: int) -> None:
    assert smallest_holding((96, 64), *values) == smallest
