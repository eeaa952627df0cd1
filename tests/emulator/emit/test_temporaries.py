# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from ptx_emulator.emit.temporaries import with_deletions


def test_what_is_not_read_again_is_deleted_before_a_call_of_the_machine() -> None:
    lines = [
        "t0 = R[0]",
        "t1 = t0 + t0",
        "t2 = numerics.fma(t1, t1, t0)",
        "t3, = m.global_access.load(s, t2, 4, 1, None, 7)",
        "t4 = t3 * t1",
        "m.global_access.store(s, t2, 4, (t4,), None, 8)",
        "return t4",
    ]
    assert list(with_deletions(lines)) == [
        *lines[:3],
        "del t0",
        *lines[3:5],
        "del t3, t1",
        *lines[5:],
    ]
