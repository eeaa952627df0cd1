# SPDX-License-Identifier: Apache-2.0
"""The order in which divergent warps run their blocks, so that they meet again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from ptx_emulator.program.blocks import Block

Edges = dict[int, list[int]]


def priorities(blocks: Sequence[Block]) -> list[int]:
    """The rank of each block; among blocks that can run, the lowest rank goes first.

    A join comes after both arms, and every block of a loop comes before any block the loop exits
    to. Blocks that cannot be reached come last.
    """
    successors = {block.index: list(block.successors) for block in blocks}
    reached = _reverse_postorder([0], successors)
    ranked = list(_ordered(0, set(reached), successors))
    ranked += sorted(successors.keys() - set(reached))
    ranks = [0] * len(blocks)
    for rank, index in enumerate(ranked):
        ranks[index] = rank
    return ranks


def _ordered(entry: int, region: Set[int], successors: Edges) -> Iterator[int]:
    """Blocks of a region that is entered at one place, each loop in it kept together."""
    forward = {
        index: [s for s in successors[index] if s in region and s != entry] for index in region
    }
    backward = reversed_edges(forward)
    for component in components([entry], forward, backward):
        if len(component) == 1:
            yield from component
        else:
            headers = [b for b in component if not component.issuperset(backward[b])]
            yield from _ordered(min(headers), component, forward)


def reversed_edges(forward: Edges) -> Edges:
    """From every block to those that it may follow."""
    backward: Edges = {index: [] for index in forward}
    for index, following in forward.items():
        for successor in following:
            backward[successor].append(index)
    return backward


def components(starts: Iterable[int], forward: Edges, backward: Edges) -> Iterator[set[int]]:
    """Sets of blocks that all reach each other, a set after every set that leads to it.

    They are those of the blocks that can be reached from `starts`.
    """
    taken: set[int] = set()
    for index in _reverse_postorder(starts, forward):
        if index in taken:
            continue
        component = {index}
        pending = [index]
        while pending:
            for before in backward[pending.pop()]:
                if before not in component and before not in taken:
                    component.add(before)
                    pending.append(before)
        taken |= component
        yield component


def _reverse_postorder(starts: Iterable[int], successors: Edges) -> list[int]:
    seen: set[int] = set()
    finished: list[int] = []
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, list(successors[start]))]
        while stack:
            index, waiting = stack[-1]
            if not waiting:
                finished.append(index)
                stack.pop()
                continue
            successor = waiting.pop()
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, list(successors[successor])))
    return finished[::-1]
