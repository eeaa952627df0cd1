# SPDX-License-Identifier: Apache-2.0
"""What is not emulated is refused when a kernel is loaded; it never computes something else."""

from __future__ import annotations

import pytest

from flash_attention.emulator import PtxError, load_program
from tests.emulator.snippets import HEADER, kernel

LINE = HEADER.count("\n") + 1
REFUSED = [
    "mul.rn.ftz.f16x2 %r10, %r11, %r12;",
    "fma.rn.relu.bf16x2 %r10, %r11, %r12, %r13;",
    "max.f16x2 %r10, %r11, %r12;",
    "neg.bf16x2 %r10, %r11;",
    "add.rn.bf16 %h1, %h2, %h3;",
    "atom.global.add.noftz.f16x2 %r10, [%rd3], %r11;",
    "atom.global.add.v4.f32 {%f1, %f2, %f3, %f4}, [%rd3], {%f5, %f6, %f7, %f8};",
    "red.global.add.noftz.bf16x2 [%rd3], %r11;",
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    " [%r10], [%r11], 16, [%r12];",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    " [%r10], [%rd3], 16, [%r12], %h1;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.max.u32 [%rd3], [%r10], 16;",
    "add.cc.u32 %r10, %r11, %r12;",
    "mapa.shared::cluster.u32 %r10, %r11, %r12;",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1, %f2, %f3, %f4},"
    " {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f1, %f2, %f3, %f4};",
]


@pytest.mark.parametrize("instruction", REFUSED)
def test_the_line_is_named(instruction: str) -> None:
    with pytest.raises(PtxError) as caught:
        load_program(kernel(instruction))
    assert caught.value.line == LINE
