# SPDX-License-Identifier: Apache-2.0
"""The derivative of the changed score, as further nodes of its program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from flash_attention.program.graph import Graph
from flash_attention.program.nodes import FLOAT, Program, needed


class LoadGradient(NamedTuple):
    """The derivative of the changed score by an element of a captured tensor."""

    slot: int
    indices: tuple[int, ...]  # the nodes that say which element
    value: int


class Derivative(NamedTuple):
    """A program with the nodes of derivatives behind its own.

    - `slope`: the derivative of the changed score by the score.
    - `loads`: one for every read of a captured tensor of floats that the changed score depends on.
    """

    program: Program
    slope: int
    loads: tuple[LoadGradient, ...]


def differentiate(program: Program) -> Derivative:
    """The derivatives of the changed score. Where there is none, they are those of torch: 0 for the
    absolute value of 0, a half each for the maximum of equals. A program without a score function
    has slope 1."""
    graph = _Gradients(program)
    if program.score is not None:
        graph.go_back(program.score)
    else:
        graph.slope = graph.literal(1.0)
    return Derivative(replace(program, nodes=tuple(graph.nodes)), graph.slope, tuple(graph.loads))


class _Gradients(Graph):
    """A graph with the nodes of derivatives. Sums with 0 and products with 0 or 1 make none."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.nodes)
        self._zero = -1
        self._given: dict[int, int] = {}  # by node, the derivative of the result by it
        self.slope = -1
        self.loads: list[LoadGradient] = []

    def go_back(self, result: int) -> None:
        """Find the derivatives of a node by all that it was computed from."""
        self._zero = self.slope = self.literal(0.0)
        self._given[result] = self.literal(1.0)
        for index in sorted(needed(self.nodes, [result]), reverse=True):
            node = self.nodes[index]
            gradient = self._given.get(index, self._zero)
            if node.type != FLOAT or gradient == self._zero:
                continue
            if node.op == "score":
                self.slope = gradient
            elif node.op == "load":
                self.loads.append(LoadGradient(int(node.detail or 0), node.inputs, gradient))
            elif node.op in _RULES:
                parts = _RULES[node.op](self, gradient, index, *node.inputs)
                for each, part in zip(node.inputs, parts, strict=True):
                    self._give(each, part)

    def _give(self, index: int, gradient: int) -> None:
        if self.type_of(index) == FLOAT:
            self._given[index] = self.plus(self._given.get(index, self._zero), gradient)

    def plus(self, left: int, right: int) -> int:
        """A sum."""
        if self.is_literal(left, 0.0):
            return right
        return left if self.is_literal(right, 0.0) else self.arithmetic("add", left, right)

    def times(self, left: int, right: int) -> int:
        """A product."""
        if self.is_literal(left, 1.0) or self.is_literal(right, 0.0):
            return right
        if self.is_literal(right, 1.0) or self.is_literal(left, 0.0):
            return left
        return self.arithmetic("mul", left, right)

    def negated(self, node: int) -> int:
        """The negative."""
        return node if self.is_literal(node, 0.0) else self.arithmetic("neg", node)

    def choose(self, condition: int, yes: int, no: int) -> int:
        """One of two."""
        return yes if yes == no else self.arithmetic("select", condition, yes, no)

    def zero(self) -> int:
        """The literal 0."""
        return self._zero


Rule = Callable[..., tuple[int, ...]]
"""From the graph, the derivative by a node, the node and its inputs to the derivatives by these."""


def _product(g: _Gradients, by: int, _: int, left: int, right: int) -> tuple[int, ...]:
    return g.times(by, right), g.times(by, left)


def _quotient(g: _Gradients, by: int, node: int, left: int, right: int) -> tuple[int, ...]:
    by_left = g.arithmetic("div", by, right)
    return by_left, g.negated(g.times(by_left, node))


def _absolute(g: _Gradients, by: int, _: int, value: int) -> tuple[int, ...]:
    below = g.choose(g.compare("lt", value, g.zero()), g.negated(by), g.zero())
    return (g.choose(g.compare("lt", g.zero(), value), by, below),)


def _larger(g: _Gradients, by: int, _: int, left: int, right: int) -> tuple[int, ...]:
    tie = g.choose(g.compare("eq", left, right), g.times(by, g.literal(0.5)), g.zero())
    wins, loses = g.compare("lt", right, left), g.compare("lt", left, right)
    return g.choose(wins, by, tie), g.choose(loses, by, tie)


def _smaller(g: _Gradients, by: int, node: int, left: int, right: int) -> tuple[int, ...]:
    return _larger(g, by, node, left, right)[::-1]


def _chosen(g: _Gradients, by: int, _: int, condition: int, *__: int) -> tuple[int, ...]:
    return -1, g.choose(condition, by, g.zero()), g.choose(condition, g.zero(), by)


def _tanh(g: _Gradients, by: int, node: int, _: int) -> tuple[int, ...]:
    square = g.arithmetic("mul", node, node)
    return (g.times(by, g.arithmetic("sub", g.literal(1.0), square)),)


def _sigmoid(g: _Gradients, by: int, node: int, _: int) -> tuple[int, ...]:
    rest = g.arithmetic("sub", g.literal(1.0), node)
    return (g.times(by, g.arithmetic("mul", node, rest)),)


def _exp2(g: _Gradients, by: int, node: int, _: int) -> tuple[int, ...]:
    return (g.times(by, g.arithmetic("mul", node, g.literal(math.log(2)))),)


def _root(g: _Gradients, by: int, node: int, _: int) -> tuple[int, ...]:
    return (g.arithmetic("div", g.times(by, g.literal(0.5)), node),)


_RULES: dict[str, Rule] = {
    "add": lambda g, by, node, left, right: (by, by),
    "sub": lambda g, by, node, left, right: (by, g.negated(by)),
    "mul": _product,
    "div": _quotient,
    "neg": lambda g, by, node, value: (g.negated(by),),
    "abs": _absolute,
    "max": _larger,
    "min": _smaller,
    "select": _chosen,
    "exp": lambda g, by, node, value: (g.times(by, node),),
    "exp2": _exp2,
    "log": lambda g, by, node, value: (g.arithmetic("div", by, value),),
    "sqrt": _root,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
}
"""Operations without a rule, such as floor, have derivative 0."""
