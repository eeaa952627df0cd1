# SPDX-License-Identifier: Apache-2.0
"""Products of many small matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_MULTIPLICATIONS = 1 << 18  # that OpenBLAS does not divide among threads, which wait for long


def stacked_product(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """The products of matrices [n, rows, depth] and [n, depth, columns], each by one thread."""
    count, rows, depth = left.shape
    columns = right.shape[2]
    few = rows
    while few % 2 == 0 and few * depth * columns > MOST_MULTIPLICATIONS:
        few //= 2
    parts = left.reshape(count, rows // few, few, depth)
    product: NDArray[Any] = np.matmul(parts, right[:, None])
    return product.reshape(count, rows, columns)
