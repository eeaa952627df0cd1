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


def test_a_text_that_looks_like_a_temporary_is_none() -> None:
    lines = ["t0 = I[('symbol', 't77')]", "t1 = t0 + 1", "m.global_access.store(s, t1)"]
    assert list(with_deletions(lines)) == [*lines[:2], "del t0", lines[2]]
    again = ["t0 = I[('symbol', 't1')]", "t1 = t0", "m.global_access.store(s, t0)"]
    assert list(with_deletions(again)) == [*again[:2], "del t1", again[2]]
