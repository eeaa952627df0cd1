# SPDX-License-Identifier: Apache-2.0
"""A program in torch operations: on the CPU, for references, and for checks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flash_attention.program.nodes import BOOL, FLOAT, INT, Node, Program, needed
from flash_attention.program.trace import Traced


class Coordinates(NamedTuple):
    """Indices as tensors that broadcast with each other."""

    batch: Tensor
    head: Tensor
    query: Tensor
    key: Tensor


def grid(batch: int, heads: int, queries: int, keys: int, device: Any = None) -> Coordinates:
    """All coordinates of scores of shape [batch, heads, queries, keys]."""
    axes = torch.meshgrid(
        *(torch.arange(size, dtype=torch.int32, device=device) for size in (batch, heads)),
        *(torch.arange(size, dtype=torch.int32, device=device) for size in (queries, keys)),
        indexing="ij",
    )
    return Coordinates(*axes)


def change_score(traced: Traced, score: Tensor, at: Coordinates) -> Tensor:
    """The changed scores. Autograd can go back to the scores and to captured tensors."""
    result = traced.program.score
    if result is None:
        return score
    changed = evaluate(traced, at, score, [result])[result]
    return changed.broadcast_to(torch.broadcast_tensors(score, *at)[0].shape)


def see(traced: Traced, at: Coordinates, dtype: torch.dtype = torch.float32) -> Tensor:
    """Which queries see which keys. Floats on the way have the dtype."""
    shape = torch.broadcast_tensors(*at)[0].shape
    result = traced.program.mask
    if result is None:
        return torch.ones(shape, dtype=torch.bool, device=at.query.device)
    return evaluate(traced, at, None, [result], dtype)[result].broadcast_to(shape)


def evaluate(
    traced: Traced,
    at: Coordinates,
    score: Tensor | None,
    results: Iterable[int],
    dtype: torch.dtype = torch.float32,
    program: Program | None = None,
) -> dict[int, Tensor]:
    """The values of nodes. Floats have the dtype of the scores, or `dtype` without scores.

    `program` has more nodes than that of `traced`, and the same slots. Raises IndexError if a
    captured tensor is read out of bounds; the index -1 is out of bounds, too.
    """
    nodes = (program or traced.program).nodes
    kind = dtype if score is None else score.dtype
    leaves = {name: each.to(torch.int32) for name, each in zip(at._fields, at, strict=True)}
    if score is not None:
        leaves["score"] = score
    types = {BOOL: torch.bool, INT: torch.int32, FLOAT: kind}
    values: dict[int, Tensor] = {}
    for index in sorted(needed(nodes, results)):
        node = nodes[index]
        inputs = [values[each] for each in node.inputs]
        if node.op in leaves:
            values[index] = leaves[node.op]
        elif node.op in ("number", "literal"):
            value = traced.numbers[int(node.detail or 0)] if node.op == "number" else _word(node)
            values[index] = torch.tensor(value, dtype=types[node.type], device=at.query.device)
        elif node.op == "load":
            values[index] = _read(traced, node, inputs).to(types[node.type])
        elif node.op == "cast":
            values[index] = inputs[0].to(types[node.type])
        else:
            values[index] = OPERATIONS[node.op](*inputs)
    return values


def _word(node: Node) -> bool | float:
    return node.detail == "true" if node.type == BOOL else float(node.detail or 0)


def _read(traced: Traced, node: Node, indices: list[Tensor]) -> Tensor:
    tensor = traced.tensors[int(node.detail or 0)]
    for dimension, (index, size) in enumerate(zip(indices, tensor.shape, strict=True)):
        if not index.numel():
            continue
        outside = [int(each) for each in index.aminmax() if not 0 <= each < size]
        if outside:
            raise IndexError(
                f"captured tensor {node.detail} of shape {tuple(tensor.shape)} is read at index"
                f" {outside[0]} of dimension {dimension}, which is out of bounds; indices go from 0"
                f" to {size - 1}"
            )
    return tensor[tuple(index.long() for index in indices)] if indices else tensor


def _floor_divide(left: Tensor, right: Tensor) -> Tensor:
    if left.is_floating_point():
        return torch.floor(left / right)
    _check_divisor(right)
    return torch.floor_divide(left, right)


def _remainder(left: Tensor, right: Tensor) -> Tensor:
    _check_divisor(right)
    return torch.remainder(left, right)


def _check_divisor(divisor: Tensor) -> None:
    if not divisor.all():
        raise ZeroDivisionError(
            "a score or mask function divides an integer by 0 with // or %, also if torch.where"
            " does not choose the result; make the divisor another number there, such as"
            " torch.clamp(x, min=1)"
        )


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "floordiv": _floor_divide,
    "mod": _remainder,
    "min": torch.minimum,
    "max": torch.maximum,
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "floor": torch.floor,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "select": torch.where,
}
