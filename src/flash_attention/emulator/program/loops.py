# SPDX-License-Identifier: Apache-2.0
"""Which loops a block is in: what tells a warp's lanes that are a turn apart from each other."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol


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
    reach = {index: _reachable(index, region, successors) for index in region}
    done: set[int] = set()
    for index in sorted(region):
        if index in done:
            continue
        loop = {other for other in reach[index] if index in reach[other]}
        done |= loop | {index}
        if index not in loop:
            nests[index] = outer
            continue
        outside = {b for b in region - loop if successors[b] & loop}
        entered = {b for b in loop if any(b in successors[o] for o in outside)}
        header = entry if entry in loop else min(entered or loop)
        for block in loop:
            nests[block] = (*outer, header)
        without_back_edges = {b: successors[b] - {header} for b in loop}
        _descend(header, frozenset(loop), without_back_edges, (*outer, header), nests)


def _reachable(start: int, region: Set[int], successors: dict[int, frozenset[int]]) -> set[int]:
    """Blocks of the region on some way that leaves `start`; `start` itself only on a cycle."""
    seen: set[int] = set()
    pending = list(successors[start] & region)
    while pending:
        index = pending.pop()
        if index not in seen:
            seen.add(index)
            pending += successors[index] & region
    return seen
