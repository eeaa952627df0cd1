# SPDX-License-Identifier: Apache-2.0
"""What is not emulated is refused when a kernel is loaded; it never computes something else."""

from __future__ import annotations

import pytest

from ptx_emulator import PtxError, load_program
from tests.emulator.snippets import HEADER, kernel

LINE = HEADER.count("\n") + 1
REFUSED = [
    "mul.rn.ftz.f16x2 %r10, %r11, %r12;",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r10], %r11, [%r12];",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32"
    " [%r10], %r11, [%r12];",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.max.u32 [%rd3], [%r10], 16;",
    "discard.global.L2 [%rd3], 128;",
    "vadd.s32.s32.s32 %r10, %r11, %r12;",
]


@pytest.mark.parametrize("instruction", REFUSED)
def test_the_line_is_named(instruction: str) -> None:
    with pytest.raises(PtxError) as caught:
        load_program(kernel(instruction))
    assert caught.value.line == LINE
