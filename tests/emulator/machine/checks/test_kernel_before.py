# SPDX-License-Identifier: Apache-2.0
"""A kernel that starts early, and touches what the kernel before wrote."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator import SCHEDULES, GlobalMemory, load_program, run
from tests.emulator.snippets import kernel

WAIT = "griddepcontrol.wait;"
LOAD, STORE = "ld.global.u32 %r10, [%rd4];", "st.global.u32 [%rd4], %r0;"
ADD = "red.global.add.u32 [%rd4], 1;"
ONE_WARP_WAITS = f"setp.ge.u32 %p1, %r0, 32; @%p1 bra BEHIND; {WAIT} BEHIND:"


def found(body: str, schedule: str = "lockstep", *, early: bool = True, of: int = 1) -> list[str]:
    """What a kernel gives away that starts behind one which stores to `in`, or to `out`."""
    memory = GlobalMemory()
    tensors = [memory.alloc(np.zeros(128, np.uint32)) for _ in range(2)]
    for text, args, starts_early in (
        ("st.global.u32 [%rd3], %r0;", [tensors[of], tensors[1 - of]], False),
        (body, tensors, early),
    ):
        result = run(
            load_program(kernel(text)),
            memory,
            grid=(2, 1, 1),
            block=64,
            args=args,
            schedule=schedule,
            starts_early=starts_early,
        )
    return sorted({finding.kind for finding in result.findings})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("access", [LOAD, STORE, ADD])
def test_accesses_without_a_wait(access: str, schedule: str) -> None:
    assert found(access, schedule) == ["early-access"]
    assert found(f"{access} {WAIT}", schedule) == ["early-access"]
    assert found(f"{WAIT} {access}", schedule) == []
    assert found(access, schedule, early=False) == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_wait_of_one_warp_reaches_others_by_a_barrier(schedule: str) -> None:
    assert found(f"{ONE_WARP_WAITS} bar.sync 0; {LOAD}", schedule) == []
    assert found(f"{ONE_WARP_WAITS} {LOAD}", schedule) == ["early-access"]


def test_what_the_kernel_before_left_alone_may_be_loaded_early() -> None:
    assert found(LOAD, of=0) == []
