# SPDX-License-Identifier: Apache-2.0
"""Traces that are kept, so that a function is not traced in every call.

A trace follows from the code of a function and from what the code reads: captured variables,
default arguments and globals. These are compared in every call: tensors by identity and metadata,
numbers by value, functions by their code and what it reads in turn. A function that may read more,
such as attributes of objects, is traced each time. No captured tensor is kept alive.
"""

from __future__ import annotations

import builtins
import dis
import math
from functools import partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from flash_attention.masks import Mask
from flash_attention.program.nodes import Program
from flash_attention.program.operations import OPERATIONS

_MOST = 512  # traces that are kept, and codes whose names are
_DEEPEST = 12  # of functions that call each other
_METADATA = ("shape", "ndim", "dtype", "device", "requires_grad")
_DTYPES = {name for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_ATTRIBUTES = {*OPERATIONS, *_METADATA, *_DTYPES, *dir(math), "size", "dim", "numel"}
_BUILTINS = {"abs", "all", "any", "bool", "enumerate", "float", "int", "isinstance", "len", "list"}
_BUILTINS |= {"max", "min", "pow", "range", "reversed", "round", "slice", "sum", "tuple", "zip"}
_UNKNOWN = ("IMPORT_", "LOAD_NAME", "LOAD_SUPER")  # instructions that read what is not compared
ALLOWED = {
    *(getattr(Tensor, name).__get__ for name in _METADATA),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__),
}
"""What a function may call with a captured tensor without reading its values."""


Numbers = tuple[int | float, ...]


class _UnknownError(Exception):
    """A function may read what is not compared."""


class Reads:
    """What functions read besides their arguments."""

    def __init__(self, *functions: object) -> None:
        self.tensors: list[Tensor] = []
        self.others: list[Any] = []  # objects that the key knows by their address
        self.key: tuple[Any, ...] | None
        try:
            self.key = tuple([self._value(function, 0) for function in functions])
        except (_UnknownError, ValueError):  # of a cell without contents
            self.key = None

    def _value(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is int or kind is bool or kind is str or value is None:
            return kind, value
        if kind is float:
            return kind, value.hex()  # 0.0 and -0.0 differ, and NaN is itself
        if kind is Tensor or kind is torch.nn.Parameter:
            self.tensors.append(value)
            metadata = (value.shape, value.dtype, value.device, value.requires_grad)
            return kind, id(value), *metadata
        if depth > _DEEPEST:
            raise _UnknownError
        if kind is FunctionType:
            return self._function(value, depth + 1)
        if kind is Mask:
            captured = [self._value(each, depth + 1) for each in value._captured]
            return kind, self._value(value._function, depth), *captured
        if kind is tuple or kind is list:
            return kind, *[self._value(each, depth + 1) for each in value]
        if kind is partial:
            named = tuple(value.keywords.items())
            return kind, *[self._value(e, depth + 1) for e in (value.func, value.args, named)]
        if value is torch or value is math or kind is torch.dtype or _is_known(value):
            self.others.append(value)
            return id(value)
        raise _UnknownError

    def _function(self, function: FunctionType, depth: int) -> Any:
        code = function.__code__
        names = _globals_of(code)
        if names is None or function.__dict__:
            raise _UnknownError
        read: list[Any] = [cell.cell_contents for cell in function.__closure__ or ()]
        read += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for name in names:
            if name in function.__globals__:
                read.append(function.__globals__[name])
            elif name not in _BUILTINS:
                raise _UnknownError
        self.others.append(code)
        return id(code), *[self._value(each, depth) for each in read]


def _is_known(value: Any) -> bool:
    """Whether a value is a function of torch, of math or of Python whose result follows from its
    arguments."""
    name = getattr(value, "__name__", None)
    if not isinstance(name, str):
        return False
    if name in _BUILTINS and value is getattr(builtins, name):
        return True
    return name in _ATTRIBUTES and any(
        value is getattr(module, name, None) for module in (torch, math)
    )


_names: dict[int, tuple[CodeType, tuple[str, ...] | None]] = {}


def _globals_of(code: CodeType) -> tuple[str, ...] | None:
    """The globals that a code reads, or None if it may read attributes of unknown objects."""
    found = _names.get(id(code))
    if found is None:
        if len(_names) >= _MOST:
            _names.clear()
        found = _names[id(code)] = code, _find_globals(code)
    return found[1]


def _find_globals(code: CodeType) -> tuple[str, ...] | None:
    names: dict[str, None] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith(_UNKNOWN):
            return None
        if instruction.opname == "LOAD_GLOBAL":
            names[instruction.argval] = None
        loads = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if loads and instruction.argval not in _ATTRIBUTES:
            return None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _find_globals(constant)
            if inner is None:
                return None
            names |= dict.fromkeys(inner)
    return tuple(names)


class _Kept(NamedTuple):
    program: Program
    slots: list[int]  # where captured tensors are among those that the functions read
    numbers: Numbers
    tensors: list[Any]  # weak references
    others: list[Any]


_kept: dict[tuple[Any, ...], _Kept] = {}


def known(reads: Reads) -> tuple[Program, tuple[Tensor, ...], Numbers] | None:
    """The program of functions that read this, and its captured tensors and numbers, or None if it
    is not kept."""
    found = None if reads.key is None else _kept.get(reads.key)
    if found is None or any(
        weak() is not tensor for weak, tensor in zip(found.tensors, reads.tensors, strict=True)
    ):
        return None
    tensors = tuple([reads.tensors[slot] for slot in found.slots])
    return found.program, tensors, found.numbers


def keep(reads: Reads, program: Program, tensors: tuple[Tensor, ...], numbers: Numbers) -> None:
    """Keep what functions that read this were traced to."""
    places = {id(tensor): place for place, tensor in enumerate(reads.tensors)}
    if reads.key is None or not all(id(tensor) in places for tensor in tensors):
        return
    if len(_kept) >= _MOST:
        oldest, *_ = list(_kept)  # at once, as threads keep traces at the same time
        _kept.pop(oldest, None)
    slots = [places[id(tensor)] for tensor in tensors]
    weak = [ref(tensor) for tensor in reads.tensors]
    _kept[reads.key] = _Kept(program, slots, numbers, weak, reads.others)
