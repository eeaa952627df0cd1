# SPDX-License-Identifier: Apache-2.0
"""Which loops a block is in: what tells a warp's lanes that are a turn apart from each other."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol

from ptx_emulator.program.order import components, reversed_edges


class Node(Protocol):
    """A block of a program, by its place and the places of those that may follow."""

    @property
    def index(self) -> int: ...

    @property
    def successors(self) -> tuple[int, ...]: ...


def loop_nests(blocks: Sequence[Node]) -> list[tuple[int, ...]]:
    """For every block the headers of the loops around it, outermost first."""
    nests: list[tuple[int, ...]] = [()] * len(blocks)
    successors = {block.index: frozenset(block.successors) for block in blocks}
    _descend(0, frozenset(successors), successors, (), nests)
    return nests


def _descend(
    entry: int,
    region: Set[int],
    successors: dict[int, frozenset[int]],
    outer: tuple[int, ...],
    nests: list[tuple[int, ...]],
) -> None:
    """Find the loops of a region that is entered at `entry`, and the loops inside them."""
    forward = {index: [s for s in successors[index] if s in region] for index in region}
    backward = reversed_edges(forward)
    for loop in components(sorted(region), forward, backward):
        if len(loop) == 1 and not loop.intersection(*(forward[b] for b in loop)):
            nests[loop.pop()] = outer
            continue
        entered = {b for b in loop if not loop.issuperset(backward[b])}
        header = entry if entry in loop else min(entered or loop)
        for block in loop:
            nests[block] = (*outer, header)
        without_back_edges = {b: successors[b] - {header} for b in loop}
        _descend(header, frozenset(loop), without_back_edges, (*outer, header), nests)
