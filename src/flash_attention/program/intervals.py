# SPDX-License-Identifier: Apache-2.0
"""What is known of a mask in a tile of queries and keys: bounds of its nodes. Integers keep how
they depend on the query and the key, so that `query - key + key` is as narrow as the query.

The rules are written once, over an arithmetic: that of Python's numbers, or of CUDA text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from flash_attention.program.nodes import (
    BOOL,
    FLOAT,
    INT,
    Node,
    Program,
    Type,
)
from flash_attention.program.reads import is_uniform, reading

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LARGEST = 1e38  # float of which sums, products and quotients are taken
COEFFICIENT_LIMIT = 2**30  # with it, sums of products fit in 64 bits

Number = Any
"""A number of the arithmetic. Those of Python are constants of every arithmetic."""
Span = tuple[Number, Number]
"""The least and the greatest value."""


class Arithmetic(Protocol):
    """Numbers that bounds are computed in: 64-bit integers, 32-bit floats and bools."""

    def apply(self, op: str, *values: Number) -> Number:
        """An operation of programs, or "below" and "above": the next floats but some."""

    def uniform(self, index: int) -> Number:
        """The value of a node that depends on the batch and the head alone."""

    def edge(self, name: str) -> Number:
        """q0, q1, k0 or k1: the first and the last query and key of the tile."""

    def extremes(self, node: Node, indices: Sequence[Span]) -> Span:
        """Bounds of the elements that a load may read, whose indices lie within spans. All but the
        last one or two have one value."""

    def distrust(self, condition: Number) -> None:
        """If the condition holds, nothing is known of the tile."""


class Truth(NamedTuple):
    """Whether a bool can be true, and whether it can be false."""

    may: Number
    may_not: Number


class Range(NamedTuple):
    """The bounds of a float. It is no NaN."""

    low: Number
    high: Number


class Affine(NamedTuple):
    """query * `of_query` + key * `of_key` + what lies between `low` and `high`."""

    of_query: Number
    of_key: Number
    low: Number
    high: Number


Known = Truth | Range | Affine | None
"""None: nothing is known."""

_MAYBE = Truth(True, True)


def mask_truth(program: Program, arithmetic: Arithmetic) -> Truth:
    """Whether the mask of a program can be true and can be false in the tile."""
    if program.mask is None:
        return Truth(True, False)
    return _Interpreter(program, arithmetic).run(program.mask)


class _Interpreter:
    def __init__(self, program: Program, arithmetic: Arithmetic) -> None:
        self.program = program
        self.arithmetic = arithmetic
        self.n = arithmetic.apply
        self.known: dict[int, Known] = {}

    def run(self, result: int) -> Truth:
        waiting = [result]
        wanted: set[int] = set()
        while waiting:  # what a uniform node was computed from is of no interest
            index = waiting.pop()
            if index not in wanted:
                wanted.add(index)
                if not is_uniform(self.program, index):
                    waiting.extend(self.program.nodes[index].inputs)
        for index in sorted(wanted):
            node = self.program.nodes[index]
            if is_uniform(self.program, index):
                self.known[index] = self._uniform(index, node.type)
            else:
                self.known[index] = self._node(node)
        truth = self.known[result]
        return truth if isinstance(truth, Truth) else _MAYBE

    def _uniform(self, index: int, type_: Type) -> Known:
        value = self.arithmetic.uniform(index)
        if type_ == BOOL:
            return Truth(value, self.n("not", value))
        if type_ == INT:
            return Affine(0, 0, value, value)
        self.arithmetic.distrust(self.n("ne", value, value))
        return Range(value, value)

    def _node(self, node: Node) -> Known:
        if node.op in ("query", "key"):
            return Affine(int(node.op == "query"), int(node.op == "key"), 0, 0)
        known = [self.known[each] for each in node.inputs]
        if node.op == "load":
            return self._load(node, known)
        if node.op == "select":
            return self._select(*known)
        if node.op in ("and", "or", "xor", "not") and node.type == BOOL:
            return self._logic(
                node.op, [each if isinstance(each, Truth) else _MAYBE for each in known]
            )
        if any(each is None for each in known):
            return _MAYBE if node.type == BOOL else None
        if node.op == "cast":
            return self._cast(known[0], node.type)
        if node.op in ("lt", "le", "eq", "ne"):
            return self._compare(node.op, *known)
        if node.type == FLOAT:
            return self._float(node.op, *known)
        return self._int(node, *known)

    def bounds(self, known: Known) -> Span:
        """The least and the greatest value."""
        if isinstance(known, Range):
            return known
        assert isinstance(known, Affine)
        low, high = known.low, known.high
        for coefficient, first, last in (
            (known.of_query, "q0", "q1"),
            (known.of_key, "k0", "k1"),
        ):
            if isinstance(coefficient, int) and coefficient == 0:
                continue
            ends = [
                self.n("mul", coefficient, self.arithmetic.edge(name)) for name in (first, last)
            ]
            if isinstance(coefficient, int):
                ends = ends if coefficient > 0 else ends[::-1]
            else:
                ends = [self.n("min", *ends), self.n("max", *ends)]
            low, high = self.n("add", low, ends[0]), self.n("add", high, ends[1])
        return low, high

    def _within_32_bits(self, known: Affine) -> Affine:
        for coefficient in (known.of_query, known.of_key):
            self._limit(coefficient, coefficient, -COEFFICIENT_LIMIT, COEFFICIENT_LIMIT)
        self._limit(*self.bounds(known), INT_MIN, INT_MAX)
        return known

    def _limit(self, low: Number, high: Number, least: Number, most: Number) -> None:
        self.arithmetic.distrust(self.n("or", self.n("lt", low, least), self.n("lt", most, high)))

    def _finite(self, low: Number, high: Number) -> Range:
        """Bounds that hold for every order of roundings."""
        self._limit(low, high, -LARGEST, LARGEST)
        return Range(self.n("below", low), self.n("above", high))

    def _load(self, node: Node, known: list[Known]) -> Known:
        if reading(self.program, node) is None or any(each is None for each in known):
            return _MAYBE if node.type == BOOL else None
        low, high = self.arithmetic.extremes(node, [self.bounds(each) for each in known])
        if node.type == BOOL:
            return Truth(self.n("ne", high, 0), self.n("eq", low, 0))
        if node.type == INT:
            return Affine(0, 0, low, high)
        self.arithmetic.distrust(self.n("ne", low, low))
        return Range(low, high)

    def _select(self, condition: Known, left: Known, right: Known) -> Known:
        chosen = condition if isinstance(condition, Truth) else _MAYBE
        if left is None or right is None:
            return None
        if isinstance(left, Truth) and isinstance(right, Truth):
            return Truth(
                *(self._either(chosen, a, b, "or") for a, b in zip(left, right, strict=True))
            )
        (low, high), (other_low, other_high) = self.bounds(left), self.bounds(right)
        low = self._either(chosen, low, other_low, "min")
        high = self._either(chosen, high, other_high, "max")
        return Affine(0, 0, low, high) if isinstance(left, Affine) else Range(low, high)

    def _either(self, chosen: Truth, left: Number, right: Number, both: str) -> Number:
        one = self.n("select", chosen.may, left, right)
        unclear = self.n("and", chosen.may, chosen.may_not)
        return self.n("select", unclear, self.n(both, left, right), one)

    def _logic(self, op: str, known: list[Truth]) -> Truth:
        n, (first, *rest) = self.n, known
        if op == "not":
            return Truth(first.may_not, first.may)
        (second,) = rest
        if op == "and":
            return Truth(n("and", first.may, second.may), n("or", first.may_not, second.may_not))
        if op == "or":
            return Truth(n("or", first.may, second.may), n("and", first.may_not, second.may_not))
        differ = n("or", n("and", first.may, second.may_not), n("and", first.may_not, second.may))
        same = n("or", n("and", first.may, second.may), n("and", first.may_not, second.may_not))
        return Truth(differ, same)

    def _cast(self, known: Known, type_: Type) -> Known:
        n = self.n
        if isinstance(known, Truth):
            zero, one = (0, 1) if type_ == INT else (0.0, 1.0)
            low = n("select", known.may_not, zero, one)
            high = n("select", known.may, one, zero)
            return Affine(0, 0, low, high) if type_ == INT else Range(low, high)
        if type_ == BOOL:
            zero_ = Affine(0, 0, 0, 0) if isinstance(known, Affine) else Range(0.0, 0.0)
            return self._compare("ne", known, zero_)
        low, high = self.bounds(known)
        if type_ == FLOAT:
            return Range(n("float", low), n("float", high))
        self._limit(low, high, -2e9, 2e9)
        return Affine(0, 0, n("int", low), n("int", high))

    def _compare(self, op: str, left: Known, right: Known) -> Truth:
        n = self.n
        if isinstance(left, Affine) and isinstance(right, Affine):
            low, high = self.bounds(self._difference(left, right))
            other_low, other_high = 0, 0
        else:
            (low, high), (other_low, other_high) = self.bounds(left), self.bounds(right)
        if op == "lt":
            return Truth(n("lt", low, other_high), n("le", other_low, high))
        if op == "le":
            return Truth(n("le", low, other_high), n("lt", other_low, high))
        meet = n("and", n("le", low, other_high), n("le", other_low, high))
        differ = n("or", n("ne", low, other_high), n("ne", other_low, high))
        return Truth(meet, differ) if op == "eq" else Truth(differ, meet)

    def _difference(self, left: Affine, right: Affine) -> Affine:
        n = self.n
        return Affine(
            n("sub", left.of_query, right.of_query),
            n("sub", left.of_key, right.of_key),
            n("sub", left.low, right.high),
            n("sub", left.high, right.low),
        )

    def _int(self, node: Node, *known: Known) -> Known:
        n, op = self.n, node.op
        left = known[0]
        right = known[-1]
        assert isinstance(left, Affine)
        assert isinstance(right, Affine)
        if op == "add":
            return self._within_32_bits(
                Affine(*(n("add", a, b) for a, b in zip(left, right, strict=True)))
            )
        if op == "sub":
            return self._within_32_bits(self._difference(left, right))
        if op == "neg":
            return self._within_32_bits(self._difference(Affine(0, 0, 0, 0), left))
        if op == "mul":
            return self._within_32_bits(self._product(node, left, right))
        low, high = self.bounds(left)
        if op == "abs":
            least = n("max", n("max", low, n("neg", high)), 0)
            return self._within_32_bits(Affine(0, 0, least, n("max", n("neg", low), high)))
        if op in ("min", "max"):
            other_low, other_high = self.bounds(right)
            return Affine(0, 0, n(op, low, other_low), n(op, high, other_high))
        if op in ("floordiv", "mod") and is_uniform(self.program, node.inputs[1]):
            return self._division(op, low, high, right.low)
        if op == "and" and is_uniform(self.program, node.inputs[1]):
            self.arithmetic.distrust(n("lt", right.low, 0))
            return Affine(0, 0, 0, right.low)
        return None

    def _product(self, node: Node, left: Affine, right: Affine) -> Affine:
        n = self.n
        if is_uniform(self.program, node.inputs[0]):
            left, right = right, left
        elif not is_uniform(self.program, node.inputs[1]):
            return Affine(0, 0, *self._corners("mul", self.bounds(left), self.bounds(right)))
        ends = [n("mul", end, right.low) for end in (left.low, left.high)]
        of_query, of_key = (n("mul", each, right.low) for each in left[:2])
        return Affine(of_query, of_key, n("min", *ends), n("max", *ends))

    def _corners(self, op: str, left: Span, right: Span) -> Span:
        a, b, c, d = (self.n(op, x, y) for x in left for y in right)
        n = self.n
        return n("min", n("min", a, b), n("min", c, d)), n("max", n("max", a, b), n("max", c, d))

    def _division(self, op: str, low: Number, high: Number, divisor: Number) -> Affine:
        n = self.n
        self.arithmetic.distrust(n("lt", divisor, 1))
        divisor = n("max", divisor, 1)
        first, last = n("floordiv", low, divisor), n("floordiv", high, divisor)
        if op == "floordiv":
            return Affine(0, 0, first, last)
        start, one_period = n("mul", first, divisor), n("eq", first, last)
        least = n("select", one_period, n("sub", low, start), 0)
        most = n("select", one_period, n("sub", high, start), n("sub", divisor, 1))
        return Affine(0, 0, least, most)

    def _float(self, op: str, *known: Known) -> Known:
        n = self.n
        left, right = self.bounds(known[0]), self.bounds(known[-1])
        if op in ("add", "sub", "mul", "div", "floordiv"):
            self._limit(*left, -LARGEST, LARGEST)
            self._limit(*right, -LARGEST, LARGEST)
        if op == "add":
            return self._finite(n("add", left[0], right[0]), n("add", left[1], right[1]))
        if op == "sub":
            return self._finite(n("sub", left[0], right[1]), n("sub", left[1], right[0]))
        if op == "mul":
            return self._finite(*self._corners("mul", left, right))
        if op in ("div", "floordiv"):
            holds_zero = n("and", n("le", right[0], 0.0), n("le", 0.0, right[1]))
            self.arithmetic.distrust(holds_zero)
            quotient = self._finite(*self._corners("div", left, right))
            return quotient if op == "div" else Range(*(n("floor", end) for end in quotient))
        if op == "neg":
            return Range(n("neg", left[1]), n("neg", left[0]))
        if op == "abs":
            least = n("max", n("max", left[0], n("neg", left[1])), 0.0)
            return Range(least, n("max", n("neg", left[0]), left[1]))
        if op in ("min", "max"):
            return Range(n(op, left[0], right[0]), n(op, left[1], right[1]))
        if op == "floor":
            return Range(n("floor", left[0]), n("floor", left[1]))
        if op == "log":
            self.arithmetic.distrust(n("le", left[0], 0.0))
        if op == "sqrt":
            self.arithmetic.distrust(n("lt", left[0], 0.0))
        return self._finite(n(op, left[0]), n(op, left[1]))
