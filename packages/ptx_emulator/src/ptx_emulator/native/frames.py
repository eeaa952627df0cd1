# SPDX-License-Identifier: Apache-2.0
"""Numbers and addresses of arrays in a row, which C takes as one argument."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def frame(*values: int | NDArray[Any]) -> NDArray[np.int64]:
    """The frame of numbers and of arrays, which somebody else has to keep."""
    found = [
        value if isinstance(value, int) else value.__array_interface__["data"][0]
        for value in values
    ]
    return np.array(found, np.int64)
