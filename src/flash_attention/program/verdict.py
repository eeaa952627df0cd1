# SPDX-License-Identifier: Apache-2.0
"""`verdict`: whether a mask hides all of a tile, none of it, or perhaps a part."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from ctypes import c_float
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flash_attention.program.intervals import Number, Span, mask_truth
from flash_attention.program.nodes import Node
from flash_attention.program.reads import BLOCK, MOST_BLOCKS, Reading, reading, tables
from flash_attention.program.torch_reader import Coordinates, evaluate
from flash_attention.program.trace import Traced

WIDENING, LEAST = 2.0**-20, 1e-37  # of bounds of floats: by a share, and by an amount


class Verdict(IntEnum):
    """What is known of a tile. PARTIAL is always right."""

    EMPTY = 0
    FULL = 1
    PARTIAL = 2


class Tile(NamedTuple):
    """Queries from q0 to q1 and keys from k0 to k1, the last ones included."""

    batch: int
    head: int
    q0: int
    q1: int
    k0: int
    k1: int


def verdict(traced: Traced, tile: Tile) -> Verdict:
    """What is known of the mask in a tile. Raises IndexError if what depends on the batch and the
    head alone is read out of bounds."""
    numbers = _Numbers(traced, tile)
    try:
        truth = mask_truth(traced.program, numbers)
    except _DistrustError:
        return Verdict.PARTIAL
    return Verdict.EMPTY if not truth.may else Verdict.PARTIAL if truth.may_not else Verdict.FULL


class _DistrustError(Exception):
    """Nothing is known of the tile."""


class _Numbers:
    """Bounds as numbers of Python. Floats are rounded to 32 bits."""

    def __init__(self, traced: Traced, tile: Tile) -> None:
        self._traced = traced
        self._tile = tile

    def apply(self, op: str, *values: Number) -> Number:
        """An operation."""
        return fold(op, *values)

    def uniform(self, index: int) -> Number:
        """The value of a node."""
        node, tile = self._traced.program.nodes[index], self._tile
        if node.op == "number":
            return fold("pos", self._traced.numbers[int(node.detail or 0)])
        if node.op in ("batch", "head"):
            return getattr(tile, node.op)
        at = (torch.tensor(each, dtype=torch.int32) for each in (tile.batch, tile.head, 0, 0))
        return evaluate(self._traced, Coordinates(*at), None, [index])[index].item()

    def edge(self, name: str) -> Number:
        """An edge of the tile."""
        return getattr(self._tile, name)

    def extremes(self, node: Node, indices: Sequence[Span]) -> Span:
        """The least and the greatest of the elements or of the blocks that may be read."""
        slot, program = int(node.detail or 0), self._traced.program
        tensor = self._traced.tensors[slot].detach()
        units = [1] * tensor.ndim
        if reading(program, node) is not Reading.ELEMENTS:
            units = [*units, tables(program)[slot], BLOCK][-tensor.ndim :]
        part, count = [], 1
        for span, size, unit in zip(indices, tensor.shape, units, strict=True):
            first, last = (min(max(each, 0), size - 1) // unit for each in span)
            part.append(slice(first * unit, (last + 1) * unit))
            count *= last - first + 1
        self.distrust(count > MOST_BLOCKS)
        return tuple(each.item() for each in _converted(tensor[tuple(part)]).aminmax())  # type: ignore[return-value]

    def distrust(self, condition: Number) -> None:
        """Give up if the condition holds."""
        if condition:
            raise _DistrustError


def _converted(part: Tensor) -> Tensor:
    if part.dtype == torch.bool or not part.is_floating_point():
        return part.to(torch.int32)
    return part.float()


def fold(op: str, *values: Any) -> Any:
    """An operation on numbers of Python."""
    result = _OPERATIONS[op](*values)
    return c_float(result).value if isinstance(result, float) else result


def _limited(function: Callable[[float], float]) -> Callable[[float], float]:
    def apply(value: float) -> float:
        try:
            return function(value)
        except OverflowError:
            return math.inf

    return apply


def _sigmoid(value: float) -> float:
    return 1 / (1 + _limited(math.exp)(-value))


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "min": min,
    "max": max,
    "neg": operator.neg,
    "pos": operator.pos,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": operator.not_,
    "select": lambda condition, a, b: a if condition else b,
    "float": float,
    "int": int,
    "floor": lambda value: float(math.floor(value)) if math.isfinite(value) else value,
    "exp": _limited(math.exp),
    "exp2": _limited(lambda value: math.pow(2.0, value)),
    "log": math.log,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "sigmoid": _sigmoid,
    "below": lambda value: value - (abs(value) * WIDENING + LEAST),
    "above": lambda value: value + (abs(value) * WIDENING + LEAST),
}
