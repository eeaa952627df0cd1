# SPDX-License-Identifier: Apache-2.0
"""What pytest gets from this package: the fixture `assert_clean`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def assert_clean() -> Callable[..., Any]:
    """Run a CUDA kernel without a GPU; the test fails if a race or another mistake is found.

    It is `ptx_emulator.assert_clean`: `assert_clean("kernel.cu", out, x, grid=4, block=256)`.
    """
    from ptx_emulator.testing import assert_clean

    return assert_clean
