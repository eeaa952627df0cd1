# SPDX-License-Identifier: Apache-2.0
"""What the kernels of this folder should compute. Arrays are changed in place."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def block_sum(out: Floats, x: Floats) -> None:
    out[:] = x.reshape(len(out), -1).sum(axis=1)


def tiled_matmul(c: Floats, a: Floats, b: Floats, n: int) -> None:
    c[:] = a @ b.T


def bulk_copy(out: Floats, x: Floats) -> None:
    out[:] = 2 * x
