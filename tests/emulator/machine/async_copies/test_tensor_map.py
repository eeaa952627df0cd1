# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.async_copies.tensor_map import TensorMap, swizzle

GOOD: dict[str, Any] = {
    "address": 1 << 44,
    "dims": (64, 100, 3),
    "strides": (128, 12800),
    "box": (64, 32, 1),
}


@pytest.mark.parametrize(("span", "rows_alike"), [(128, 1), (64, 2), (32, 4)])
def test_a_swizzle_exchanges_chunks_by_row(span: int, rows_alike: int) -> None:
    rows, chunks = 8, span // 16
    address = 4096 + np.arange(rows * chunks) * 16
    row, chunk = np.divmod(np.arange(rows * chunks), chunks)
    expected = 4096 + row * span + (chunk ^ row // rows_alike) * 16
    np.testing.assert_array_equal(swizzle(address, span), expected)


def test_no_swizzle_moves_nothing() -> None:
    address = np.arange(0, 4096, 16)
    np.testing.assert_array_equal(swizzle(address, 0), address)


def test_a_base_offset_says_in_which_row_the_pattern_starts() -> None:
    aligned = np.arange(0, 1024, 16)
    shifted = aligned + 3 * 128
    np.testing.assert_array_equal(swizzle(shifted, 128, 3) - 3 * 128, swizzle(aligned, 128))


def test_the_bytes_of_a_box() -> None:
    tensor = TensorMap(**GOOD)
    assert tensor.rank == 3
    assert tensor.row_bytes == 128
    assert tensor.box_bytes == 64 * 32 * 2
    assert TensorMap(**{**GOOD, "box": (32, 32, 1), "element_bytes": 4}).box_bytes == 4096


def test_a_box_with_steps_has_fewer_elements_than_its_extent() -> None:
    tensor = TensorMap(**{**GOOD, "box": (64, 33, 2), "steps": (1, 2, 2)})
    assert tensor.extents == (64, 17, 1)
    assert tensor.box_bytes == 64 * 17 * 2
    assert TensorMap(**GOOD).extents == GOOD["box"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dims": (), "strides": (), "box": ()}, "1 to 5 dimensions, not 0"),
        ({"dims": (8,) * 6, "strides": (16,) * 5, "box": (8,) * 6}, "not 6"),
        ({"box": (64, 32)}, "there are 2 and 2"),
        ({"strides": (128,)}, "there are 3 and 1"),
        ({"dims": (64, 0, 3)}, r"not \(64, 0, 3\)"),
        ({"dims": (64, (1 << 32) + 1, 3)}, "1 to 2\\^32"),
        ({"box": (64, 257, 1)}, "1 to 256"),
        ({"box": (64, 0, 1)}, "1 to 256"),
        ({"address": (1 << 44) + 8}, "no multiple of 16"),
        ({"strides": (120, 12800)}, "multiples of 16 bytes"),
        ({"strides": (128, 1 << 40)}, "below 2\\^40"),
        ({"box": (12, 32, 1)}, "multiple of 16 bytes, not 24"),
        ({"box": (128, 32, 1)}, "256 bytes does not fill its 128-byte swizzle"),
        ({"box": (64, 32, 1), "swizzle": 64}, "128 bytes does not fill its 64-byte"),
        ({"box": (32, 32, 1)}, "64 bytes does not fill its 128-byte swizzle"),
        ({"swizzle": 16}, "not 16"),
        ({"element_bytes": 3}, "not 3"),
        ({"steps": (1, 2)}, r"as many steps of 1 to 8, not \(1, 2\)"),
        ({"steps": (1, 9, 1)}, "1 to 8"),
        ({"steps": (2, 1, 1)}, "the innermost dimension has step 2"),
    ],
)
def test_what_the_driver_refuses_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        TensorMap(**{**GOOD, **change})


def test_rows_may_be_wide_without_a_swizzle() -> None:
    assert TensorMap(**{**GOOD, "box": (128, 4, 1), "swizzle": 0}).row_bytes == 256
