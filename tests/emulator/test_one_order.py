# SPDX-License-Identifier: Apache-2.0
"""Warps run together where their order cannot matter, and in the schedule's order elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.snippets import STORE, run_body

REVERSED = """
mov.u32 %r20, buffer;
mad.lo.u32 %r21, %r0, 4, %r20;
st.shared.u32 [%r21], %r0;
BARRIER
sub.u32 %r22, 63, %r0;
mad.lo.u32 %r23, %r22, 4, %r20;
ld.shared.u32 %r10, [%r23];
"""


def reversed_words(barrier: str) -> str:
    return REVERSED.replace("BARRIER", barrier) + STORE


@pytest.mark.parametrize("schedule", ["depth-first", "random"])
def test_warps_that_meet_at_barriers_run_together(schedule: str) -> None:
    body = reversed_words("bar.sync 0;")
    wanted, lockstep = run_body(body)
    got, result = run_body(body, schedule=schedule)
    np.testing.assert_array_equal(got, wanted)
    assert result.steps == lockstep.steps
    assert result.counters.to_dict() == lockstep.counters.to_dict()


def test_a_race_is_run_in_the_order_of_the_schedule() -> None:
    """The last warp runs first and reads what the first one has not written yet."""
    wanted, lockstep = run_body(reversed_words(""))
    got, result = run_body(reversed_words(""), schedule="depth-first")
    assert {finding.kind for finding in lockstep.findings} == {"race"}
    assert {finding.kind for finding in result.findings} >= {"uninitialised-shared", "race"}
    assert not np.array_equal(got, wanted)


def test_memory_that_is_loaded_and_stored_keeps_the_order() -> None:
    body = "ld.global.u32 %r10, [%rd3];\nadd.u32 %r10, %r10, 1;\n" + STORE
    _, lockstep = run_body(body)
    got, result = run_body(body, schedule="depth-first")
    np.testing.assert_array_equal(got, np.full(128, 0xDEADBEEF + 1, np.uint32))
    assert result.steps == 2 * lockstep.steps
    assert result.findings == []
