# SPDX-License-Identifier: Apache-2.0
"""Ranks of blocks: arms before their join, loops before their exits."""

from __future__ import annotations

from collections.abc import Sequence, Set

from hypothesis import given
from hypothesis import strategies as st

from flash_attention.families.registry import unit_of
from flash_attention.kernel_configs import DType
from flash_attention.launch.emulation import compiled_unit
from ptx_emulator.program.blocks import Block, build_blocks
from ptx_emulator.program.order import priorities
from ptx_emulator.ptx.parse import parse
from tests.hopper_configs import hopper_ladder


def graph(*successors: Sequence[int]) -> list[Block]:
    return [
        Block(index, index, (), "fall", None, None, tuple(following))
        for index, following in enumerate(successors)
    ]


def order(*successors: Sequence[int]) -> list[int]:
    ranks = priorities(graph(*successors))
    return sorted(range(len(ranks)), key=ranks.__getitem__)


def test_a_straight_line() -> None:
    assert order([1], [2], []) == [0, 1, 2]


def test_both_arms_come_before_the_join_wherever_the_text_has_them() -> None:
    assert order([1, 3], [2], [], [2]) in ([0, 1, 3, 2], [0, 3, 1, 2])


def test_a_loop_comes_before_its_exit() -> None:
    assert order([2], [], [3, 1], [2]) == [0, 2, 3, 1]


def test_a_loop_with_two_ways_back_comes_before_its_exit() -> None:
    ranks = priorities(graph([1], [2, 3], [1], [1, 4], []))
    assert ranks[4] == 4


def test_an_inner_loop_comes_before_the_rest_of_the_outer_one() -> None:
    assert order([1], [4, 5], [3], [1], [4, 2], []) == [0, 1, 4, 2, 3, 5]


def test_a_block_that_cannot_be_reached_comes_last() -> None:
    assert order([2], [2], []) == [0, 2, 1]


def test_a_loop_with_two_entries_has_an_order() -> None:
    ranks = priorities(graph([1, 2], [2], [1, 3], []))
    assert sorted(ranks) == [0, 1, 2, 3]
    assert (ranks[0], ranks[3]) == (0, 3)


def check(entry: int, region: Set[int], edges: dict[int, list[int]], ranks: list[int]) -> None:
    """What leads to a block, and is not led to by it, ranks before it; the same inside loops."""
    inside = {b: [s for s in edges[b] if s in region and s != entry] for b in region}
    reached = {}
    for block in region:
        found, pending = set[int](), [block]
        while pending:
            fresh = set(inside[pending.pop()]) - found
            found |= fresh
            pending += fresh
        reached[block] = found
    for block in region:
        for later in reached[block] - {block}:
            if block not in reached[later]:
                assert ranks[block] < ranks[later]
        loop = {b for b in reached[block] if block in reached[b]}
        entered = any(block in inside[b] for b in region - loop)
        if loop - {block} and entered:
            assert max(ranks[b] for b in loop) - min(ranks[b] for b in loop) == len(loop) - 1
            check(block, loop, inside, ranks)


@st.composite
def structured(draw: st.DrawFn) -> list[list[int]]:
    """Successors of blocks of a random program of ifs, loops, breaks and returns."""
    edges: list[list[int]] = [[]]

    def new(*before: int) -> int:
        edges.append([])
        for block in before:
            edges[block].append(len(edges) - 1)
        return len(edges) - 1

    def statement(at: int, depth: int, breaks: list[int] | None) -> int:
        kinds = ["plain", "return"] + (["if", "loop"] if depth < 3 else [])
        kind = draw(st.sampled_from(kinds + (["break"] if breaks is not None else [])))
        if kind == "if":
            left, right = new(at), new(at)
            return new(sequence(left, depth + 1, breaks), sequence(right, depth + 1, breaks))
        if kind == "loop":
            header = new(at)
            leaving = [header]
            edges[sequence(new(header), depth + 1, leaving)].append(header)
            return new(*leaving)
        if kind == "break" and breaks is not None:
            breaks.append(at)
        if kind == "return":
            new(at)
        return new(at)

    def sequence(at: int, depth: int, breaks: list[int] | None) -> int:
        for _ in range(draw(st.integers(1, 3))):
            at = statement(at, depth, breaks)
        return at

    sequence(0, 0, None)
    names = [0, *draw(st.permutations(range(1, len(edges))))]
    renamed: list[list[int]] = [[] for _ in edges]
    for block, following in enumerate(edges):
        renamed[names[block]] = [names[s] for s in following]
    return renamed


@given(structured())
def test_structured_programs_in_any_layout(successors: list[list[int]]) -> None:
    ranks = priorities(graph(*successors))
    assert sorted(ranks) == list(range(len(successors)))
    check(0, set(range(len(successors))), dict(enumerate(successors)), ranks)


def test_a_warp_specialised_kernel() -> None:
    _, config = hopper_ladder(DType.FP16, 64)[-1]
    (kernel,) = parse(compiled_unit(unit_of(config)).ptx).values()
    blocks = build_blocks(kernel)
    edges = {block.index: list(block.successors) for block in blocks}
    check(0, set(edges), edges, priorities(blocks))
