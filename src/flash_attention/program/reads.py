# SPDX-License-Identifier: Apache-2.0
"""Which captured tensors are read in a tile, and how the bounds of what is read are found."""

from __future__ import annotations

from enum import Enum
from functools import cache

from flash_attention.program.nodes import KEY, QUERY, Node, Program, needed

BLOCK = 64  # elements of a row that share a minimum and a maximum, and rows of a square
MOST_BLOCKS = 64  # that are looked at for one read, or elements


def is_uniform(program: Program, index: int) -> bool:
    """Whether a node has one value in a tile."""
    return not program.depends[index] & (QUERY | KEY)


class Reading(Enum):
    """How the bounds of what a load reads in a tile are found."""

    ROW = "minima and maxima of pieces of rows"
    AREA = "minima and maxima of squares"
    ELEMENTS = "all that may be read, which is little"


def reading(program: Program, node: Node) -> Reading | None:
    """How the bounds of a load are found, or None if they are not, or if it has one value."""
    if node.op != "load" or not all(is_uniform(program, each) for each in node.inputs[:-2]):
        return None
    varying = [not is_uniform(program, each) for each in node.inputs[-2:]]
    if not any(varying):
        return None
    if varying[:-1] in ([], [False]):
        return Reading.ROW
    small = all(program.nodes[each].op == "floordiv" for each in node.inputs[-2:])
    return Reading.ELEMENTS if small else Reading.AREA


@cache
def tables(program: Program) -> dict[int, int]:
    """The captured tensors whose bounds are tables, and how many rows a block of a table has. Its
    columns are BLOCK."""
    found: dict[int, int] = {}
    for index in sorted(needed(program.nodes, [program.mask])):
        node = program.nodes[index]
        kind = reading(program, node)
        if kind in (Reading.ROW, Reading.AREA):
            slot = int(node.detail or 0)
            found[slot] = max(found.get(slot, 1), BLOCK if kind is Reading.AREA else 1)
    return dict(sorted(found.items()))


@cache
def reads_pairs(program: Program | None) -> bool:
    """Whether scores depend on elements of captured tensors that differ from one pair of a query
    and a key to the next."""
    if program is None:
        return False
    both = QUERY | KEY
    return any(
        program.nodes[index].op == "load" and program.depends[index] & both == both
        for index in needed(program.nodes, [program.score])
    )
