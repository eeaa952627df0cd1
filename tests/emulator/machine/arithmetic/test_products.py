# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptx_emulator.machine.arithmetic import products

Array = NDArray[Any]


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(64, 16, 64), (64, 128, 256), (16, 256, 72)]
)
def test_products_are_those_of_numpy_and_small(
    rows: int, depth: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    left = rng.integers(-8, 9, (3, rows, depth)).astype(np.float32)
    right = rng.integers(-8, 9, (3, columns, depth)).astype(np.float32).transpose(0, 2, 1)
    sizes: list[int] = []
    wanted, matmul = np.matmul(left, right), np.matmul

    def watched(a: Array, b: Array) -> Array:
        sizes.append(a.shape[-2] * a.shape[-1] * b.shape[-1])
        product: Array = matmul(a, b)
        return product

    monkeypatch.setattr(np, "matmul", watched)
    np.testing.assert_array_equal(products.stacked_product(left, right), wanted)
    assert len(sizes) == 1
    assert sizes[0] <= products.MOST_MULTIPLICATIONS
