# SPDX-License-Identifier: Apache-2.0
"""What a conversion to tf32 makes of values that are no numbers, as measured on an H200."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator.machine.arithmetic.narrow import to_tf32, to_tf32_even

ONE_NAN = 0x7FFFE000


@pytest.mark.parametrize(
    ("word", "away", "even"),
    [
        (0x7F800001, 0x7F800000, ONE_NAN),
        (0xFFA00000, 0xFFA00000, ONE_NAN),
        (0xFFC12345, 0xFFC12000, ONE_NAN),
        (0x7FFFFFFF, 0x7FFFE000, ONE_NAN),
        (0x7F800000, 0x7F800000, 0x7F800000),
        (0xFF800000, 0xFF800000, 0xFF800000),
        (0x7F7FFFFF, 0x7F800000, 0x7F800000),
    ],
)
def test_no_numbers(word: int, away: int, even: int) -> None:
    x = np.array([word], np.uint32).view(np.float32)
    assert (int(to_tf32(x)[0]), int(to_tf32_even(x)[0])) == (away, even)
