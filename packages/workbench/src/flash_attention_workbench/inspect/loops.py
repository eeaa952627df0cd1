# SPDX-License-Identifier: Apache-2.0
"""Loops of a listing, found in the graph of its branches, and the one that matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptx_emulator.program.loops import loop_nests


@dataclass(frozen=True)
class Line:
    """What one line of a listing says about the flow, and how much of the work it does."""

    target: int | None = None  # the line that it may branch to
    falls_through: bool = True
    work: int = 0


@dataclass(frozen=True)
class HotLoop:
    """The lines of a loop, also those that the compiler placed elsewhere."""

    lines: frozenset[int]
    skippable: frozenset[int]  # those that a turn can do without


@dataclass(frozen=True)
class _Block:
    index: int
    lines: range
    successors: tuple[int, ...]


def hot_loop(lines: Sequence[Line]) -> HotLoop | None:
    """The innermost loop with the most work; None where no work is in a loop.

    Of loops with the same work it is the one with the least besides: the others apply masks.
    """
    blocks = _blocks(lines)
    nests = loop_nests(blocks)
    work = [sum(lines[line].work for line in block.lines) for block in blocks]
    amounts: dict[tuple[int, ...], int] = {}
    for block, nest in zip(blocks, nests, strict=True):
        for depth in range(1, len(nest) + 1):
            amounts[nest[:depth]] = amounts.get(nest[:depth], 0) + work[block.index]
    working = [nest for nest, amount in amounts.items() if amount]
    outer = {nest[:depth] for nest in working for depth in range(1, len(nest))}
    innermost = [nest for nest in working if nest not in outer]
    if not innermost:
        return None
    most = max(amounts[nest] for nest in innermost)
    found = [_loop(blocks, nests, nest) for nest in innermost if amounts[nest] == most]
    return min(found, key=lambda loop: len(loop.lines - loop.skippable))


def _loop(
    blocks: Sequence[_Block], nests: Sequence[tuple[int, ...]], nest: tuple[int, ...]
) -> HotLoop:
    body = {b.index for b, n in zip(blocks, nests, strict=True) if n[: len(nest)] == nest}
    successors = {index: set(blocks[index].successors) & body for index in body}
    spare = [index for index in body if _can_skip(index, nest[-1], successors)]
    return HotLoop(_lines(blocks, body), _lines(blocks, spare))


def _lines(blocks: Sequence[_Block], indices: Sequence[int] | set[int]) -> frozenset[int]:
    return frozenset(line for index in indices for line in blocks[index].lines)


def _can_skip(block: int, header: int, successors: dict[int, set[int]]) -> bool:
    """Whether some way from the header back to it leaves a block out."""
    if block == header:
        return False
    seen, pending = {header}, [header]
    while pending:
        for after in successors[pending.pop()] - {block}:
            if after == header:
                return True
            if after not in seen:
                seen.add(after)
                pending.append(after)
    return False


def _blocks(lines: Sequence[Line]) -> list[_Block]:
    """Lines that run one after the other together, and what follows each group."""
    heads = {0}
    for place, line in enumerate(lines):
        if line.target is not None:
            heads.add(line.target)
        if line.target is not None or not line.falls_through:
            heads.add(place + 1)
    starts = sorted(head for head in heads if head < len(lines))
    numbers = {start: number for number, start in enumerate(starts)}
    blocks = []
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else len(lines)
        last = lines[end - 1]
        after = [] if last.target is None else [numbers[last.target]]
        if last.falls_through and end in numbers:
            after.append(numbers[end])
        blocks.append(_Block(number, range(start, end), tuple(dict.fromkeys(after))))
    return blocks
