# SPDX-License-Identifier: Apache-2.0
"""The rungs: each changes one field, and none is invalid."""

from __future__ import annotations

import pytest

from flash_attention.arch import ARCHES
from flash_attention.call.dtype import DType
from flash_attention.families.sm80.backward.rungs import BASE_IDEA, STEPS, base
from flash_attention.ladder import Rung, climb


@pytest.mark.parametrize("d_head", [64, 128])
def test_every_rung_changes_one_field_and_runs_on_sm_80(d_head: int) -> None:
    rungs = climb(Rung(1, "base", BASE_IDEA, None, base(DType.BF16, d_head)), *STEPS)
    assert len(rungs) == 10
    for rung in rungs:
        rung.config.check(ARCHES["sm_80"])
