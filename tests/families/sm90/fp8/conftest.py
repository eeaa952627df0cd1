# SPDX-License-Identifier: Apache-2.0
"""What the tests of FP8 kernels need of a GPU."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def on_hopper() -> None:
    """Skip the test on other GPUs."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("FP8 kernels run on sm_90 alone")
