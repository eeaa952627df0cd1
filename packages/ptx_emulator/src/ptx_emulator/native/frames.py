# SPDX-License-Identifier: Apache-2.0
"""Numbers and addresses of arrays in a row, which C takes as one argument."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.native.load import load_native


def frame(*values: int | NDArray[Any]) -> NDArray[np.int64]:
    """The frame of up to 63 numbers and arrays, which somebody else has to keep."""
    native = load_native()
    assert native is not None
    numbers, arrays = [], 0
    for place, value in enumerate(values):
        if isinstance(value, int):
            numbers.append(value)
        else:
            numbers.append(id(value))
            arrays |= 1 << place
    found = np.array(numbers, np.int64)
    native.find_arrays(found, arrays)
    return found
