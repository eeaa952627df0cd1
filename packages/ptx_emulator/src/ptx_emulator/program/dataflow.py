# SPDX-License-Identifier: Apache-2.0
"""What is known at the start of every block, on whatever path it is reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ptx_emulator.program.blocks import Block

State = TypeVar("State")


def states_at_entry(
    blocks: Sequence[Block],
    first: State,
    through: Callable[[Block, State], State],
    join: Callable[[State, State], State],
) -> list[State | None]:
    """The state at the start of every block; None where no path leads.

    `first` is the state at the start of the kernel. `through` gives the state after a block, and
    `join` that of two paths that meet. Neither may change what it is given.
    """
    states: list[State | None] = [None] * len(blocks)
    states[0] = first
    pending = {0}
    while pending:
        index = min(pending)  # in the order of the text, which most paths follow
        pending.remove(index)
        block = blocks[index]
        state = states[index]
        if state is None:
            continue
        after = through(block, state)
        for successor in block.successors:
            before = states[successor]
            joined = after if before is None else join(before, after)
            if joined != before:
                states[successor] = joined
                pending.add(successor)
    return states
