# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator import SCHEDULES, UserKernel
from tests.emulator.snippets import STORE, run_body

MOVED_THEN_OVERWRITTEN = """
mov.u32 %r10, 1;
mov.u32 %r12, 2;
setp.eq.u32 %p0, %r0, 999;
@%p0 bra END;
mov.u32 %r11, %r10;
mov.u32 %r10, %r12;
END:
mad.lo.u32 %r10, %r10, 16, %r11;
"""


def test_a_variable_may_be_named_as_temporaries_are() -> None:
    source = "__device__ float t77;\n__global__ void k(float* out) { out[threadIdx.x] = t77 + 1; }"
    out = np.zeros(32, np.float32)
    UserKernel.of_source(source).run(out, grid=1, block=32)
    assert out.tolist() == [1.0] * 32


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_register_that_is_moved_and_then_overwritten_moves_its_old_value(schedule: str) -> None:
    out, _ = run_body(MOVED_THEN_OVERWRITTEN + STORE, schedule=schedule)
    assert set(out.tolist()) == {0x21}
