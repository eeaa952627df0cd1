# SPDX-License-Identifier: Apache-2.0
"""Loops of small listings, drawn by hand."""

from __future__ import annotations

from flash_attention_workbench.inspect.loops import HotLoop, Line, hot_loop

PLAIN = Line()
WORK = Line(work=1)
END = Line(falls_through=False)


def back(target: int) -> Line:
    return Line(target)


def jump(target: int) -> Line:
    return Line(target, falls_through=False)


def lines(first: int, last: int) -> frozenset[int]:
    return frozenset(range(first, last + 1))


def test_the_innermost_loop_with_work_is_hot() -> None:
    nested = [PLAIN, WORK, PLAIN, WORK, back(2), PLAIN, back(1), END]
    assert hot_loop(nested) == HotLoop(lines(2, 4), frozenset())


def test_a_loop_without_work_inside_one_with_work_is_not() -> None:
    waiting = [WORK, PLAIN, back(1), WORK, back(0), END]
    assert hot_loop(waiting) == HotLoop(lines(0, 4), frozenset())


def test_of_two_the_one_with_more_work_and_else_the_shorter() -> None:
    masked_first = [WORK, PLAIN, back(0), WORK, back(3), END]
    assert hot_loop(masked_first) == HotLoop(lines(3, 4), frozenset())
    masked_last = [WORK, back(0), WORK, PLAIN, back(2), END]
    assert hot_loop(masked_last) == HotLoop(lines(0, 1), frozenset())
    more = [WORK, WORK, back(0), WORK, back(3), END]
    assert hot_loop(more) == HotLoop(lines(0, 2), frozenset())


def test_what_a_branch_jumps_over_can_be_skipped() -> None:
    branching = [WORK, Line(4), PLAIN, PLAIN, WORK, back(0), END]
    assert hot_loop(branching) == HotLoop(lines(0, 5), lines(2, 3))


def test_lines_placed_after_the_end_belong_to_the_loop_they_return_to() -> None:
    """A wait that is tried again far away makes no loop of what lies between."""
    far = [PLAIN, Line(6), WORK, back(0), WORK, END, PLAIN, back(6), jump(2)]
    assert hot_loop(far) == HotLoop(frozenset((0, 1, 2, 3, 6, 7, 8)), lines(6, 8))


def test_work_outside_of_loops_is_not_hot() -> None:
    assert hot_loop([WORK, PLAIN, back(1), END]) is None
