# SPDX-License-Identifier: Apache-2.0
"""Jobs for a child: one that is well, and the ways not to be.

They import nothing of the package, so that a child starts in no time.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flash_attention_workbench.child import Note


def double(note: Note, number: int) -> int:
    note("doubling")
    return 2 * number


def process_id(note: Note) -> int:
    return os.getpid()


def slow_but_talking(note: Note, times: int, seconds: float) -> int:
    for i in range(times):
        note(i)
        time.sleep(seconds)
    return times


def hang(note: Note) -> None:
    note("kernel 7")
    time.sleep(3600)


def hang_in_a_class(note: Note) -> None:
    """Before 3.12, Python raises a RuntimeError for whatever is raised here."""

    class Hanging:
        def __set_name__(self, owner: type, name: str) -> None:
            hang(note)

    type("Owner", (), {"attribute": Hanging()})


def crash(note: Note) -> None:
    note("kernel 8")
    os._exit(3)


def fault(note: Note) -> None:
    note("kernel 9")
    raise RuntimeError("illegal memory access")
