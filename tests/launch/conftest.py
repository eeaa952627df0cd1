# SPDX-License-Identifier: Apache-2.0
"""What tests of launches share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs an sm_90 GPU")
