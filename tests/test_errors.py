# SPDX-License-Identifier: Apache-2.0
"""What messages show of the values that they speak of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flash_attention.errors import quoted


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("it's", '"it\'s"'),
        (None, "None"),
        (10**5000, "an int that cannot be printed"),
        (Mute(), "a Mute that cannot be printed"),
        (object(), "an object"),
        (torch.zeros(3), "a Tensor"),
        (np.zeros((2, 2)), "array([[0., 0.], [0., 0.]])"),
        ("x" * 500, f"'{'x' * 99}..."),
    ],
    ids=["quotes", "None", "digits", "mute", "object", "tensor", "lines", "long"],
)
def test_a_value_takes_one_short_line(value: object, text: str) -> None:
    assert quoted(value) == text
