# SPDX-License-Identifier: Apache-2.0
"""Which kernels do the same in every order of their warps, as far as the text tells."""

from __future__ import annotations

import pytest

from ptx_emulator import load_program
from tests.emulator.snippets import STORE, kernel

IN_ANY_ORDER = [
    "add.s32 %r10, %r0, 1;",
    "bar.sync 0;",
    "bar.sync 3;",
    "barrier.sync.aligned 0;",
    "bar.warp.sync -1;",
    "red.global.add.u32 [%rd5], %r0;",
    "atom.shared.max.s32 %r11, [buffer], %r0;",
    "st.shared.u32 [buffer], %r0;",
    "cp.async.ca.shared.global [buffer], [%rd5], 4;",
]
IN_THEIR_ORDER = [
    "bar.sync 1, 64;",
    "bar.arrive 1, 64;",
    "bar.sync %r0;",
    "atom.global.add.u32 %r10, [%rd5], %r0;\nadd.s32 %r11, %r10, 1;",
    "red.global.add.f32 [%rd5], %f0;",
    "atom.shared.exch.b32 %r10, [buffer], %r0;",
    "mov.u32 %r10, %clock;",
    "setmaxnreg.dec.sync.aligned.u32 24;",
    "ld.u32 %r10, [%rd5];",
    "mbarrier.init.shared.b64 [buffer], 1;",
    "trap;",
]


@pytest.mark.parametrize("text", IN_ANY_ORDER)
def test_warps_that_learn_nothing_of_their_order(text: str) -> None:
    assert load_program(kernel(text + STORE)).meets_at_barriers


@pytest.mark.parametrize("text", IN_THEIR_ORDER)
def test_warps_that_may_learn_their_order(text: str) -> None:
    assert not load_program(kernel(text + STORE)).meets_at_barriers
