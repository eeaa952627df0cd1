# SPDX-License-Identifier: Apache-2.0
"""What follows for scores if queries see no later key: distances without a sign are the query less
the key, and a score that subtracts them is tilted."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from flash_attention.program.nodes import FLOAT, Node, Program, needed


@lru_cache(maxsize=256)
def with_signs(program: Program, causal: bool) -> Program:
    """The program with differences for distances without a sign, if `causal` or the mask says that
    a query sees no later key. Both programs are the same wherever a query sees a key."""
    if program.score is None or not (causal or _hides_later_keys(program, program.mask)):
        return program
    wanted = needed(program.nodes, [program.score]) - needed(program.nodes, [program.mask])
    nodes = tuple(
        _without_abs(program, node) if index in wanted else node
        for index, node in enumerate(program.nodes)
    )
    return program if nodes == program.nodes else replace(program, nodes=nodes)


def _hides_later_keys(program: Program, index: int | None) -> bool:
    if index is None:
        return False
    node = program.nodes[index]
    if node.op == "and":
        return any(_hides_later_keys(program, each) for each in node.inputs)
    return node.op in ("le", "lt") and _leaves(program, node) == ("key", "query")


def _leaves(program: Program, node: Node) -> tuple[str, ...]:
    return tuple(program.nodes[each].op for each in node.inputs)


def _without_abs(program: Program, node: Node) -> Node:
    """The query less the key instead of the absolute value of a difference of both."""
    if node.op != "abs":
        return node
    inner = program.nodes[node.inputs[0]]
    if inner.op == "cast" and node.type == FLOAT:
        difference = program.nodes[inner.inputs[0]]
        if difference.op == "sub" and _leaves(program, difference) == ("query", "key"):
            return inner
        if difference.op == "sub" and _leaves(program, difference) == ("key", "query"):
            return Node("neg", FLOAT, node.inputs)
    elif inner.op == "sub" and sorted(_leaves(program, inner)) == ["key", "query"]:
        query, key = sorted(inner.inputs, key=lambda each: program.nodes[each].op != "query")
        return Node("sub", node.type, (query, key))
    return node
