# SPDX-License-Identifier: Apache-2.0
"""Masks that kernels have without a function: a query sees its own key and those before it, all of
them or a number of them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from flash_attention.program.nodes import Node, Program, needed
from flash_attention.program.trace import Traced


class BuiltInMask(NamedTuple):
    """How many keys before its own a query sees; all of them if it is None."""

    left: int | None


class _Left(NamedTuple):
    slot: int  # of the captured number that limits the distance
    less: int  # 1 if the distance is smaller than it, 0 if it may be as large


def built_in_mask(traced: Traced) -> BuiltInMask | None:
    """Return the built-in mask that a mask function describes, or None if it is another one."""
    program = traced.program
    if program.mask is None:
        return None
    found = _limits(program)
    if found is None:
        return None
    if not found:
        return BuiltInMask(None)
    left = min(int(traced.numbers[limit.slot]) - limit.less for limit in found)
    return BuiltInMask(left) if left >= 0 else None


@lru_cache(maxsize=256)
def _limits(program: Program) -> tuple[_Left, ...] | None:
    """Return the limits of the distance in a conjunction of these and of the condition that no
    later key is seen, or None if the mask is anything else."""
    waiting, limits, causal = [program.mask], [], False
    while waiting:
        index = waiting.pop()
        assert index is not None
        node = program.nodes[index]
        if node.op == "and":
            waiting.extend(node.inputs)
        elif node.op == "le" and _ops(program, node) == ("key", "query"):
            causal = True
        elif limit := _left_of(program, node):
            limits.append(limit)
        else:
            return None
    return tuple(limits) if causal else None


def _left_of(program: Program, node: Node) -> _Left | None:
    """Return the limit of a comparison of the query less the key with a captured integer."""
    if node.op not in ("le", "lt"):
        return None
    distance, number = (program.nodes[each] for each in node.inputs)
    is_distance = distance.op == "sub" and _ops(program, distance) == ("query", "key")
    if not is_distance or number.op != "number" or number.type != "int":
        return None
    assert isinstance(number.detail, int)
    return _Left(number.detail, node.op == "lt")


def _ops(program: Program, node: Node) -> tuple[str, ...]:
    return tuple(program.nodes[each].op for each in node.inputs)


def without_mask(traced: Traced) -> Traced:
    """Return the score function alone."""
    program, tensors, numbers = _score_alone(traced.program)
    return Traced(
        program,
        tuple(traced.tensors[slot] for slot in tensors),
        tuple(traced.numbers[slot] for slot in numbers),
    )


@lru_cache(maxsize=256)
def _score_alone(program: Program) -> tuple[Program, tuple[int, ...], tuple[int, ...]]:
    """Return the nodes that a score function needs, and the slots of the tensors and of the numbers
    that these read."""
    kept = sorted(needed(program.nodes, [program.score]))
    places = {index: place for place, index in enumerate(kept)}
    slots: dict[str, dict[int, int]] = {"load": {}, "number": {}}
    nodes = []
    for index in kept:
        node = program.nodes[index]
        detail = node.detail
        if node.op in slots and isinstance(detail, int):
            of_kind = slots[node.op]
            detail = of_kind.setdefault(detail, len(of_kind))
        inputs = tuple(places[each] for each in node.inputs)
        nodes.append(node._replace(inputs=inputs, detail=detail))
    tensors, numbers = (tuple(of_kind) for of_kind in slots.values())
    alone = replace(
        program,
        nodes=tuple(nodes),
        tensors=tuple(program.tensors[slot] for slot in tensors),
        numbers=tuple(program.numbers[slot] for slot in numbers),
        score=None if program.score is None else places[program.score],
        mask=None,
    )
    return alone, tensors, numbers
