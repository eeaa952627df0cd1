# SPDX-License-Identifier: Apache-2.0
"""Nodes while they are made: an operation on the same nodes is the same node."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention.program.nodes import BOOL, FLOAT, Node, Type


class Graph:
    """A growing list of nodes."""

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        self.nodes = list(nodes)
        self._known = {node: index for index, node in enumerate(self.nodes)}

    def add(self, op: str, type_: Type, *inputs: int, detail: int | str | None = None) -> int:
        """The node of an operation: one that is there, or a new one."""
        node = Node(op, type_, inputs, detail)
        index = self._known.get(node)
        if index is None:
            index = self._known[node] = len(self.nodes)
            self.nodes.append(node)
        return index

    def type_of(self, index: int) -> Type:
        """The type of a node."""
        return self.nodes[index].type

    def literal(self, value: bool | float) -> int:
        """A value that is part of the program: a bool, an infinity, NaN, or a small constant of a
        rule. The library chooses these, or they are written in one way only."""
        if isinstance(value, bool):
            return self.add("literal", BOOL, detail=str(value).lower())
        return self.add("literal", FLOAT, detail=repr(float(value)))

    def is_literal(self, index: int, value: float) -> bool:
        """Whether a node is the float literal of a value."""
        node = self.nodes[index]
        return node.op == "literal" and node.type == FLOAT and node.detail == repr(float(value))

    def cast(self, index: int, type_: Type) -> int:
        """A node converted to a type."""
        return index if self.type_of(index) == type_ else self.add("cast", type_, index)

    def arithmetic(self, op: str, *inputs: int) -> int:
        """An operation whose result has the type of its inputs, which is that of the last."""
        return self.add(op, self.type_of(inputs[-1]), *inputs)

    def compare(self, op: str, left: int, right: int) -> int:
        """One of "lt", "le", "eq" and "ne"."""
        return self.add(op, BOOL, left, right)
