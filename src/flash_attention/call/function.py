# SPDX-License-Identifier: Apache-2.0
"""Function: a user's score function and mask function, traced."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flash_attention.errors import UnsupportedError, quoted
from flash_attention.program.bias import Bias, bias_load, bias_of
from flash_attention.program.built_in import BuiltInMask, built_in_mask, without_mask
from flash_attention.program.derivative import differentiate
from flash_attention.program.layout import Sum
from flash_attention.program.nodes import FLOAT, INT, Program, Type, read_program
from flash_attention.program.trace import MaskFunction, ScoreFunction, Traced, trace
from flash_attention.program.verdict_text import tables_bytes


class FunctionKey(NamedTuple):
    """The part of a function that a plan depends on."""

    program: Program
    devices: tuple[torch.device, ...]  # of captured tensors
    bounds_bytes: int
    bias: Bias | None


class Function:
    """A score function and a mask function, as `attention` takes them.

    - `score`: f(score, batch, head, query, key), the new score. It gets scaled scores.
    - `mask`: g(batch, head, query, key), whether the query sees the key.

    Each is called once, with symbols, and has plain arithmetic, comparisons, torch's functions of
    elements, and reads of captured tensors by index. What it computes is compiled into the kernels.
    Functions that differ in numbers and in captured tensors alone share the kernels. A captured
    tensor is read when a kernel runs.
    """

    __slots__ = ("__dict__", "sums", "text", "traced")

    traced: Traced
    text: str  # of the program
    sums: tuple[Sum, ...]  # of gradients of captured tensors, in a backward pass

    def __init__(
        self, score: ScoreFunction | None = None, mask: MaskFunction | None = None
    ) -> None:
        if score is None and mask is None:
            raise UnsupportedError("a Function has neither score nor mask; give one of them")
        self._put(trace(score=score, mask=mask))

    @classmethod
    def written(
        cls, text: str, tensors: Sequence[Tensor], integers: Sequence[int], floats: Sequence[float]
    ) -> Function:
        """The function whose program was written as a text, with these tensors and numbers."""
        program, rest = read_program(text), {INT: iter(integers), FLOAT: iter(floats)}
        numbers = tuple(next(rest[type_]) for type_ in program.numbers)
        return cls.of(Traced(program, tuple(tensors), numbers))

    @classmethod
    def of(cls, traced: Traced) -> Function:
        """The function of what was traced."""
        function = cls.__new__(cls)
        function._put(traced)
        return function

    def _put(self, traced: Traced) -> None:
        self.traced = traced
        self.sums = ()
        compiling = torch.compiler.is_dynamo_compiling()
        self.text = traced.program.written() if compiling else traced.program.text

    def numbers_of(self, type_: Type) -> list[Any]:
        """The captured numbers of a type."""
        numbers = zip(self.traced.numbers, self.program.numbers, strict=True)
        return [number for number, own in numbers if own == type_]

    @property
    def program(self) -> Program:
        """What the functions compute, without tensors and numbers."""
        return self.traced.program

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The captured tensors."""
        return self.traced.tensors

    @property
    def sum_memory(self) -> tuple[Tensor, ...]:
        """The memory of gradients of captured tensors, which a backward pass writes."""
        return tuple([tensor for each in self.sums for tensor in each.memory])

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """The tensors that kernels read and write, in the order of their addresses."""
        return (*self.tensors, *self.sum_memory)

    def trained(self) -> tuple[int, ...]:
        """The slots of captured tensors that require grad and that scores depend on. Nothing has a
        gradient through a mask."""
        tensors = self.tensors
        return tuple([s for s in differentiable_slots(self.program) if tensors[s].requires_grad])

    def needs_grad(self) -> bool:
        """Whether autograd would expect the gradient of a captured tensor, as far as torch.compile
        follows."""
        if not any([tensor.requires_grad for tensor in self.tensors]):
            return False
        return torch.compiler.is_dynamo_compiling() or bool(self.trained())

    @cached_property
    def built_in_mask(self) -> BuiltInMask | None:
        """The built-in mask that the mask function describes, if it describes one."""
        return built_in_mask(self.traced)

    @cached_property
    def score_alone(self) -> Function | None:
        """The function without its mask, or None if there is no score function."""
        if self.program.score is None:
            return None
        return Function.of(without_mask(self.traced))

    @cached_property
    def devices(self) -> tuple[torch.device, ...]:
        """The devices of the captured tensors."""
        return tuple(tensor.device for tensor in self.tensors)

    @cached_property
    def bounds_bytes(self) -> int:
        """The memory that the planning of blocks needs for bounds of captured tensors."""
        return tables_bytes(self.traced)

    @cached_property
    def _bias_load(self) -> int | None:
        return bias_load(self.program)

    @property
    def bias(self) -> Bias | None:
        """Where the tensor lies that scores read at every query and key, if a tensor map can
        describe it."""
        return None if self._bias_load is None else bias_of(self.traced, self._bias_load)

    @cached_property
    def _key_beside_bias(self) -> FunctionKey:
        return FunctionKey(self.program, self.devices, self.bounds_bytes, None)

    @property
    def key(self) -> FunctionKey:
        """What a plan depends on. It keeps no captured tensor alive."""
        bias, key = self.bias, self._key_beside_bias
        return key if bias is None else key._replace(bias=bias)

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Function) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.program)

    def __repr__(self) -> str:
        return f"Function({self.program.digest})"


@lru_cache(maxsize=256)
def differentiable_slots(program: Program) -> tuple[int, ...]:
    """The slots of captured tensors of floats that changed scores depend on."""
    return tuple(sorted({load.slot for load in differentiate(program).loads}))


def refuse_trained(function: Function | None) -> None:
    """Raise UnsupportedError if a captured tensor requires grad, where autograd does not see it."""
    if function is not None and function.needs_grad():
        raise UnsupportedError(
            f"captured tensor {function.trained()[0]} of the score or mask function requires grad,"
            " and a transform of torch.func runs, or a mode that traces calls, which does not see"
            " it; capture tensor.detach(), or call attention outside of it"
        )


def check_function(function: object, q: Tensor) -> None:
    """Check that a function is one, and that its tensors are where those of the call are."""
    if function is None:
        return
    if not isinstance(function, Function):
        raise UnsupportedError(
            f"function is {quoted(function)}; pass flash_attention.Function(score=f, mask=g), or f"
            " as score and g as mask"
        )
    for slot, tensor in enumerate(function.tensors):
        if tensor.device != q.device:
            raise UnsupportedError(
                f"captured tensor {slot} of the score or mask function, of shape"
                f" {tuple(tensor.shape)}, is on {tensor.device}, and q on {q.device}; move it with"
                f' .to("{q.device}")'
            )
