# SPDX-License-Identifier: Apache-2.0
"""The symbols that a user's function is called with, and the graph that they grow. Numbers and
captured tensors become slots."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from flash_attention.errors import one, quoted
from flash_attention.program.graph import Graph
from flash_attention.program.nodes import BOOL, DTYPES, FLOAT, INT, RANK, Type
from flash_attention.program.refusal import refuse
from flash_attention.program.tangent import has_tangent

Operation = Callable[..., Any]
_TORCH_TYPES = {BOOL: torch.bool, INT: torch.int32, FLOAT: torch.float32}
_INT_LIMIT = 2**31
_FLOAT_LIMIT = 2.0**128 - 2.0**103  # from here on, 32-bit floats are infinite


class Symbol:
    """A value that is not known yet: a coordinate, the score, or what was computed from them."""

    __slots__ = ("capture", "node")
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None  # NumPy must not take it for an object

    ndim = 0
    shape = torch.Size(())
    device = torch.device("cpu")

    def __init__(self, capture: Capture, node: int) -> None:
        self.capture = capture
        self.node = node

    @property
    def type(self) -> Type:
        """bool, int or float."""
        return self.capture.type_of(self.node)

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of the type."""
        return _TORCH_TYPES[self.type]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        capture = _capture_of((*args, *(kwargs or {}).values()))
        return capture.call(name_of(func), args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.capture.operation(name)
        return lambda *args, **kwargs: self.capture.call(name, (self, *args), kwargs)

    def _is_no_number(self, met: str, instead: str) -> NoReturn:
        refuse(f"{met} needs the value of an expression that is known in the kernel only", instead)

    def __bool__(self) -> bool:
        self._is_no_number(
            "`if`, `and`, `or`, `not`, `min`, `max` or a chained comparison",
            "write torch.where(condition, x, y) for `if`, and & | ~ between comparisons in"
            " parentheses, and torch.minimum or torch.maximum",
        )

    def __index__(self) -> int:
        self._is_no_number(
            "an index into a list, `range` or `int`",
            "make the list a tensor before the function and index that; write .to(torch.int32) for"
            " `int`",
        )

    __int__ = __index__

    def __float__(self) -> float:
        self._is_no_number(
            "a function of `math`, or `float`",
            "write torch.exp, torch.log, torch.tanh and so on, and .float() for `float`",
        )

    def __iter__(self) -> NoReturn:
        self._is_no_number("a loop", "loop over numbers only")

    def __len__(self) -> int:
        self._is_no_number("`len`", "it is one value")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self._is_no_number("NumPy", "write the same function of torch")

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        call = self.capture.call
        return call("floordiv", (self, other), {}), call("mod", (self, other), {})

    def __getitem__(self, index: object) -> NoReturn:
        refuse("a coordinate or a score is indexed", "it is one value; index captured tensors only")


class Rows:
    """A captured tensor with fewer indices than dimensions."""

    __slots__ = ("capture", "indices", "tensor")

    def __init__(self, capture: Capture, tensor: Tensor, indices: tuple[int, ...]) -> None:
        self.capture = capture
        self.tensor = tensor
        self.indices = indices

    @property
    def shape(self) -> torch.Size:
        """The dimensions without an index."""
        return self.tensor.shape[len(self.indices) :]

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Symbol | Rows]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: Any) -> Symbol | Rows:
        return self.capture.read(self.tensor, index, self.indices)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rows = next(each for each in args if isinstance(each, Rows))
        rows.refuse()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()

    def refuse(self) -> NoReturn:
        """Say that more indices are needed."""
        refuse(
            f"a captured tensor of {self.tensor.ndim} dimensions is used with"
            f" {len(self.indices)} indices",
            "index every dimension, so that one element is read",
        )


def name_of(function: Any) -> str:
    """The name of a torch function: that of an operator without its underscores, that of a custom
    operation with its library."""
    if isinstance(function, OpOverloadPacket | OpOverload):
        packet: Any = getattr(function, "overloadpacket", function)
        return str(packet._qualified_op_name).removeprefix("aten::")
    name = str(getattr(function, "__name__", function))
    return name.strip("_") if name.startswith("__") else name


def _operator(name: str) -> tuple[Operation, Operation]:
    def forward(self: Symbol, other: Any) -> Any:
        return self.capture.call(name, (self, other), {})

    def backward(self: Symbol, other: Any) -> Any:
        return self.capture.call(name, (other, self), {})

    return forward, backward


def _unary(name: str) -> Operation:
    return lambda self: self.capture.call(name, (self,), {})


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
for _name in (*_ARITHMETIC, "and", "or", "xor", "lshift", "rshift"):
    _forward, _backward = _operator(_name)
    setattr(Symbol, f"__{_name}__", _forward)
    setattr(Symbol, f"__r{_name}__", _backward)
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Symbol, f"__{_name}__", _operator(_name)[0])
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Symbol, f"__{_name}__", _unary(_name))


def _capture_of(values: tuple[Any, ...]) -> Capture:
    for value in values:
        if isinstance(value, Symbol | Rows):
            return value.capture
        if isinstance(value, tuple | list):
            for each in value:
                if isinstance(each, Symbol | Rows):
                    return each.capture
    raise AssertionError("torch calls this for a symbol only")


class Capture(Graph):
    """A graph that grows while a function runs."""

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []
        self.numbers: list[int | float] = []
        self.saw_values = False  # of captured tensors, which may be others in the next call
        self._operations = operations
        self._shown: list[tuple[Tensor, int]] = []  # tensors that stand for nodes

    def operation(self, name: str) -> Operation:
        """An operation of torch by its name. Refuses those that programs do not have."""
        found = self._operations.get(name)
        if found is None:
            known = ", ".join(sorted(each for each in self._operations if hasattr(Tensor, each)))
            refuse(f"torch's {name!r} is called", f"a mask or score function can call {known}")
        return found

    def call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Apply an operation."""
        operation = self.operation(name)
        try:
            return operation(self, *args, **kwargs)
        except TypeError as error:
            refuse(
                f"{name} is called with other arguments than it can have here ({error})",
                "give it coordinates, scores, numbers and elements of captured tensors",
            )

    def symbol(self, node: int) -> Symbol:
        """A node as the function sees it."""
        return Symbol(self, node)

    def show(self, symbol: Symbol) -> Tensor:
        """A tensor without memory that stands for a symbol. torch.compile follows what Python does
        with tensors, and not all that it does with other objects."""
        tensor = torch.empty((), dtype=symbol.dtype, device="meta")
        self._shown.append((tensor, symbol.node))
        return tensor

    def unshown(self, value: Any) -> Any:
        """The symbol that a tensor stands for, or the value itself."""
        for own, node in self._shown:
            if own is value:
                return self.symbol(node)
        return value

    def settle(self, value: Any) -> Symbol | bool | int | float:
        """An operand as a symbol or a number of Python. Refuses everything else."""
        kind = type(value)
        if kind is Symbol:
            if value.capture is not self:
                refuse("a value of an earlier call is used", "use the arguments of this call")
            return value  # type: ignore[no-any-return]
        if kind is float or kind is int or kind is bool:
            return value  # type: ignore[no-any-return]
        if isinstance(value, Tensor):
            return self._settle_tensor(value)
        if isinstance(value, Rows):
            value.refuse()
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real):
            return float(value)
        refuse(
            f"{quoted(value)} is an operand",
            "operands are coordinates, scores, numbers and elements of captured tensors",
        )

    def _settle_tensor(self, tensor: Tensor) -> Symbol | bool | int | float:
        symbol = self.unshown(tensor)
        if isinstance(symbol, Symbol):
            return symbol
        if tensor.device.type == "meta":
            refuse(
                "a function of Python, such as abs, is called where torch.compile does not show it",
                "call that of torch, such as (query - key).abs() or torch.abs(query - key)",
            )
        if tensor.ndim:
            refuse(
                f"a captured tensor of shape {tuple(tensor.shape)} is an operand as a whole",
                "read one element of it, such as tensor[head] or tensor[head, query, key]",
            )
        compiling = torch.compiler.is_dynamo_compiling()  # and nothing has a value
        differentiated = tensor.requires_grad or has_tangent(tensor)
        if tensor.device.type == "cpu" and not (compiling or differentiated):
            self.saw_values = True
            return tensor.item()
        return self.symbol(self._load(tensor, ()))

    def type_of_operand(self, value: Symbol | bool | int | float) -> Type:
        """The type of a settled operand."""
        if isinstance(value, Symbol):
            return value.type
        return BOOL if isinstance(value, bool) else INT if isinstance(value, int) else FLOAT

    def convert(self, value: Symbol | bool | int | float, type_: Type) -> int:
        """The node of a settled operand, converted. A number gets a slot of its own."""
        if isinstance(value, Symbol):
            return self.cast(value.node, type_)
        if isinstance(value, bool):
            return self.cast(self.literal(value), type_)
        if type_ == FLOAT:
            if not abs(value) < _FLOAT_LIMIT:  # infinite or NaN, as kernels see it
                infinite = math.inf if value > 0 else -math.inf
                return self.literal(infinite if value == value else math.nan)
            return self._number(float(value), FLOAT)
        if type_ == BOOL:
            return self.literal(bool(value))
        if not -_INT_LIMIT <= value < _INT_LIMIT:
            refuse(f"the integer {value} has more than 32 bits", "use smaller integers or floats")
        return self._number(int(value), INT)

    def _number(self, value: int | float, type_: Type) -> int:
        self.numbers.append(value)
        return self.add("number", type_, detail=len(self.numbers) - 1)

    def together(self, *values: Any, least: Type = BOOL) -> tuple[int, ...]:
        """Operands as nodes of one type: the widest of theirs, and no narrower than `least`."""
        settled = [self.settle(value) for value in values]
        type_ = max((least, *map(self.type_of_operand, settled)), key=RANK.__getitem__)
        return tuple(self.convert(value, type_) for value in settled)

    def read(self, tensor: Tensor, index: Any, before: tuple[int, ...] = ()) -> Symbol | Rows:
        """An element of a captured tensor, or its rows if there are too few indices."""
        given = index if isinstance(index, tuple) else (index,)
        if len(before) + len(given) > tensor.ndim:
            refuse(
                f"{len(before) + len(given)} indices are given for a captured tensor of shape"
                f" {tuple(tensor.shape)}",
                f"it has {tensor.ndim} dimensions",
            )
        indices = list(before)
        for each in given:
            indices.append(self._index(each, tensor.shape[len(indices)]))
        if len(indices) < tensor.ndim:
            return Rows(self, tensor, tuple(indices))
        return self.symbol(self._load(tensor, tuple(indices)))

    def _index(self, index: Any, size: int) -> int:
        if index is None or index is Ellipsis or isinstance(index, slice):
            refuse(
                "a captured tensor is indexed with a slice, None or ... beside a coordinate",
                "index every dimension with an integer or a coordinate",
            )
        settled = self.settle(index)
        if self.type_of_operand(settled) != INT:
            refuse(
                f"a captured tensor is indexed with {one(self.type_of_operand(settled))}",
                "indices are integers; write .to(torch.int32)",
            )
        if isinstance(settled, Symbol):
            return settled.node
        if not -size <= settled < size:
            refuse(f"index {settled} is out of range", f"the dimension has {size} elements")
        return self.convert(int(settled) % size, INT)

    def _load(self, tensor: Tensor, indices: tuple[int, ...]) -> int:
        if tensor.dtype not in DTYPES:
            known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
            refuse(f"a captured tensor has dtype {tensor.dtype}", f"elements can be of {known}")
        if tensor.layout is not torch.strided:
            refuse(
                f"a captured tensor has layout {tensor.layout}",
                "make it dense before the function, with tensor.to_dense()",
            )
        if not tensor.numel():
            refuse(
                f"a captured tensor of shape {tuple(tensor.shape)} is read",
                "it has no elements; a captured tensor needs at least one",
            )
        slots = [slot for slot, own in enumerate(self.tensors) if own is tensor]
        slot = slots[0] if slots else len(self.tensors)
        if not slots:
            self.tensors.append(tensor)
        return self.add("load", DTYPES[tensor.dtype], *indices, detail=slot)
