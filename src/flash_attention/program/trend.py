# SPDX-License-Identifier: Apache-2.0
"""Whether scores fall with the distance between the query and the key. It chooses the order in
which kernels visit keys, and every order is right: what a function captures counts as positive."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

from flash_attention.program.nodes import KEY, QUERY, Node, Program


class Trend(Enum):
    """How a value changes with the distance."""

    NONE = 0  # it does not
    GROWS = 1
    FALLS = -1
    UNKNOWN = 2

    def __neg__(self) -> Trend:
        return self if self is Trend.UNKNOWN else Trend(-self.value)

    def __and__(self, other: Trend) -> Trend:
        """The trend of two values that are added, or of which one is chosen."""
        if Trend.NONE in (self, other):
            return other if self is Trend.NONE else self
        return self if self is other else Trend.UNKNOWN


@lru_cache(maxsize=256)
def falls_with_distance(program: Program) -> bool:
    """Whether the score function lowers scores as the distance grows."""
    if program.score is None:
        return False
    trends: list[Trend] = []
    for index, node in enumerate(program.nodes):
        known = bool(program.depends[index] & (QUERY | KEY))
        trends.append(_trend(program, node, trends) if known else Trend.NONE)
    return trends[program.score] is Trend.FALLS


def _trend(program: Program, node: Node, trends: list[Trend]) -> Trend:
    own = [trends[each] for each in node.inputs]
    if node.op == "abs":
        return Trend.GROWS if _is_difference(program, node.inputs[0]) else Trend.UNKNOWN
    if node.op in ("add", "min", "max"):
        return own[0] & own[1]
    if node.op == "sub":
        return own[0] & -own[1]
    if node.op == "neg":
        return -own[0]
    if node.op in ("cast", "exp", "exp2", "log", "sqrt", "tanh", "sigmoid", "floor"):
        return own[0]
    if node.op == "mul" and node.inputs[0] == node.inputs[1]:
        return Trend.GROWS if _is_difference(program, node.inputs[0]) else Trend.UNKNOWN
    if node.op in ("mul", "div"):
        return _of_product(program, node, own)
    return Trend.UNKNOWN


def _of_product(program: Program, node: Node, own: list[Trend]) -> Trend:
    """The trend of a product or quotient with a factor that does not change with the distance."""
    if own[1] is Trend.NONE:
        return -own[0] if _is_negative(program, node.inputs[1]) else own[0]
    if own[0] is Trend.NONE and node.op == "mul":
        return -own[1] if _is_negative(program, node.inputs[0]) else own[1]
    return Trend.UNKNOWN


def _is_difference(program: Program, index: int) -> bool:
    """Whether a node is the query less the key, or the key less the query."""
    node = program.nodes[index]
    if node.op in ("cast", "neg", "abs"):
        return _is_difference(program, node.inputs[0])
    leaves = {program.nodes[each].op for each in node.inputs}
    return node.op == "sub" and leaves == {"query", "key"}


def _is_negative(program: Program, index: int) -> bool:
    """Whether a factor is written as a negative one."""
    node = program.nodes[index]
    if node.op == "neg":
        return not _is_negative(program, node.inputs[0])
    if node.op in ("mul", "div"):
        return _is_negative(program, node.inputs[0]) != _is_negative(program, node.inputs[1])
    return node.op == "literal" and str(node.detail).startswith("-")
