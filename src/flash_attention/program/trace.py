# SPDX-License-Identifier: Apache-2.0
"""`trace`: a mask and a score function are called once, with symbols, and give a program."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from flash_attention.errors import one, quoted
from flash_attention.program import kept
from flash_attention.program.capture import Capture, Rows, Symbol, name_of
from flash_attention.program.nodes import (
    BOOL,
    FLOAT,
    LEAVES,
    Node,
    Program,
    TensorType,
    needed,
)
from flash_attention.program.operations import OPERATIONS, constant
from flash_attention.program.refusal import refuse_function
from flash_attention.program.uncompiled import uncompiled

ScoreFunction = Callable[..., Any]
"""f(score, batch, head, query, key) -> score."""
MaskFunction = Callable[..., Any]
"""g(batch, head, query, key) -> bool."""

_COORDINATES = ("batch", "head", "query", "key")


class Traced(NamedTuple):
    """A program, and the tensors and numbers that its slots hold in this call."""

    program: Program
    tensors: tuple[Tensor, ...]
    numbers: tuple[int | float, ...]


def trace(score: ScoreFunction | None = None, mask: MaskFunction | None = None) -> Traced:
    """The program of a score function, of a mask function, or of both. Of an autograd.Function in
    them only what its forward does counts."""
    if torch.compiler.is_dynamo_compiling():  # which follows the calls and guards what they read
        return _trace(Capture(OPERATIONS), score, mask)
    traced: Traced = uncompiled(_known_trace, score, mask)
    return traced


def _known_trace(score: ScoreFunction | None, mask: MaskFunction | None) -> Traced:
    reads = kept.Reads(score, mask)
    found = kept.known(reads)
    if found is not None:
        return Traced(*found)
    capture = Capture(OPERATIONS)
    traced = _trace(capture, score, mask)
    if not capture.saw_values:
        kept.keep(reads, *traced)
    return traced


def _trace(capture: Capture, score: ScoreFunction | None, mask: MaskFunction | None) -> Traced:
    changed = seen = None
    with _Shown(capture) if torch.compiler.is_dynamo_compiling() else _Reads(capture):
        if score is not None:
            result = _call(capture, score, "score function", ("score", *_COORDINATES))
            changed = _result(capture, score, result, FLOAT)
        if mask is not None:
            result = _call(capture, mask, "mask function", _COORDINATES)
            seen = _result(capture, mask, result, BOOL)
    return _finish(capture, changed, seen)


def trace_score(function: ScoreFunction) -> Traced:
    """The program of a score function."""
    return trace(score=function)


def trace_mask(function: MaskFunction) -> Traced:
    """The program of a mask function."""
    return trace(mask=function)


class _Reads(TorchFunctionMode):
    """Sees what torch does not show to the type of an argument: the index of a plain tensor."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self._capture = capture

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__getitem__ and _has_symbol(args[1]):
            return self._capture.read(*args)
        if func is torch.tensor and isinstance(args[0] if args else None, bool | int | float):
            return constant(self._capture, args[0], (kwargs or {}).get("dtype"))
        if func not in kept.ALLOWED and not any(issubclass(t, Symbol | Rows) for t in types):
            self._capture.saw_values = True
        return func(*args, **(kwargs or {}))


class _Shown(TorchFunctionMode):
    """Sees all that a function does with the tensors that stand for symbols."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self._capture = capture

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        capture = self._capture
        given = [capture.unshown(each) for each in args]
        named = {name: capture.unshown(each) for name, each in (kwargs or {}).items()}
        if func is Tensor.__getitem__ and not isinstance(given[0], Symbol):
            index = args[1] if isinstance(args[1], tuple | list) else (args[1],)
            if not _has_symbol([capture.unshown(each) for each in index]):
                return func(*args, **(kwargs or {}))
            found: Any = capture.read(*args)
        elif func is torch.tensor and isinstance(given[0], bool | int | float):
            found = constant(capture, given[0], named.get("dtype"))
        elif _has_symbol([*given, *named.values()]):
            name = name_of(func)
            if name in _REVERSED:
                name, given = _REVERSED[name], given[::-1]
            found = capture.call(name, tuple(given), named)
        else:
            return func(*args, **(kwargs or {}))
        return capture.show(found) if isinstance(found, Symbol) else found


_OPERATORS = ("add", "sub", "mul", "truediv", "div", "floordiv", "mod", "pow", "and", "or", "xor")
_REVERSED = {f"r{name}": name for name in (*_OPERATORS, "lshift", "rshift")}


def _has_symbol(index: Any) -> bool:
    parts = index if isinstance(index, tuple | list) else (index,)
    return any(isinstance(each, Symbol | Rows) for each in parts)


def _call(capture: Capture, function: Callable[..., Any], what: str, names: tuple[str, ...]) -> Any:
    if not callable(function):
        refuse_function(function, f"{quoted(function)} is no {what}", "give a function")
    symbols: list[Any]
    symbols = [capture.symbol(capture.add(name, LEAVES[name][0])) for name in names]
    if torch.compiler.is_dynamo_compiling():
        symbols = [capture.show(each) for each in symbols]
    try:
        return function(*symbols)
    except RecursionError:
        refuse_function(
            function,
            f"the {what} calls more functions within each other than Python allows",
            "combine fewer masks, or write one function with a loop",
        )
    except TypeError:
        if _takes(function, len(symbols)):
            raise
    refuse_function(
        function,
        f"the {what} cannot be called with {len(names)} arguments",
        f"it is called with ({', '.join(names)})",
    )


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a builtin does not say what it takes
        return True
    return True


def _result(capture: Capture, function: Callable[..., Any], result: Any, type_: str) -> int:
    """The node of a function's result, which must be a number for scores and a bool for masks."""
    wanted = (
        "the new score, a number" if type_ == FLOAT else "whether the query sees the key, a bool"
    )
    if not isinstance(result, Symbol | Tensor | bool | int | float):
        refuse_function(
            function, f"the function returns {quoted(result)}", f"it must return {wanted}"
        )
    settled = capture.settle(result)
    given = capture.type_of_operand(settled)
    if (given == BOOL) != (type_ == BOOL):
        instead = "compare it, such as x != 0" if type_ == BOOL else "write torch.where(x, a, b)"
        refuse_function(
            function, f"the function returns {one(given)}", f"it must return {wanted}; {instead}"
        )
    return capture.convert(settled, BOOL if type_ == BOOL else FLOAT)


def _finish(capture: Capture, score: int | None, mask: int | None) -> Traced:
    """Leave out what no result needs, and number the rest anew."""
    live = sorted(needed(capture.nodes, (score, mask)))
    place = {old: new for new, old in enumerate(live)}
    slots: dict[str, dict[int, int]] = {"load": {}, "number": {}}
    nodes = []
    for old in live:
        op, type_, inputs, detail = capture.nodes[old]
        if isinstance(detail, int):
            detail = slots[op].setdefault(detail, len(slots[op]))
        nodes.append(Node(op, type_, tuple([place[each] for each in inputs]), detail))
    tensors = tuple(capture.tensors[slot] for slot in slots["load"])
    numbers = tuple(capture.numbers[slot] for slot in slots["number"])
    number_types = {node.detail: node.type for node in nodes if node.op == "number"}
    program = Program(
        tuple(nodes),
        tuple(TensorType(tensor.dtype, tensor.ndim) for tensor in tensors),
        tuple(number_types[slot] for slot in range(len(numbers))),
        None if score is None else place[score],
        None if mask is None else place[mask],
    )
    return Traced(program, tensors, numbers)
