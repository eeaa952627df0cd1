# SPDX-License-Identifier: Apache-2.0
"""Preparations: the tensors of a call become arguments of kernels.

A preparation serves all calls with one key. It checks what may differ between them, has the kernels
loaded, allocates the results, and fills in the addresses. It also tells the emulator which argument
points at which tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import inf, prod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from flash_attention.call import tensors
from flash_attention.call.backward_call import BackwardCall, BackwardProblem, Gradients
from flash_attention.call.call import DESCALES, Call
from flash_attention.call.checks import views_of
from flash_attention.call.problem import Problem, resized_view
from flash_attention.call.results import (
    fill_keyless,
    new_gradient,
    new_maxima,
    new_output,
    results,
)
from flash_attention.call.tangent_call import TangentCall
from flash_attention.call.tensors import TensorView
from flash_attention.errors import UnsupportedError
from flash_attention.families.backward_args import FIRST_ADDRESS as BACKWARD_ADDRESS
from flash_attention.families.backward_args import pack_addresses as pack_backward
from flash_attention.families.call_args import EXTRAS_ADDRESS, pack_extras
from flash_attention.families.fit import check_pointers
from flash_attention.families.forward_args import FIRST_ADDRESS as FORWARD_ADDRESS
from flash_attention.families.forward_args import pack_addresses as pack_forward
from flash_attention.families.recipe import Recipe
from flash_attention.families.traced_args import put_function
from flash_attention.launch.launcher import Launcher, Sized

_is_grad_enabled = torch.is_grad_enabled
_empty_like = torch.empty_like
# torch.empty would have to find out which of its signatures is meant.
_empty_strided = torch.empty_strided

AnyCall = TypeVar("AnyCall", Call, BackwardCall, TangentCall)
Result = TypeVar("Result")
Outputs = Tensor | tuple[Tensor, ...]
"""The output, or a tuple of it and what else is asked for: its log-sum-exp, maxima of scores."""
NO_GRADIENTS = Gradients()
"""Stands for gradients that are not allocated; no kernel is loaded for them."""


class Preparation(ABC, Generic[AnyCall, Result]):
    """Prepares the calls with one key for a launch."""

    def __init__(
        self, recipe: Recipe, launcher: Launcher, given: Mapping[str, Tensor], alignment: int
    ) -> None:
        self.spare: list[Any] = []  # arguments of calls that were launched
        self._launcher = launcher
        self._structure: Any = type(recipe.arguments)
        self._template = bytes(recipe.arguments)
        self._has_extras = bool(given)
        self._factors = tuple(name for name in given if name in DESCALES)
        self._alignment = alignment

    def _new_arguments(self) -> Any:
        """Return arguments for the first call, or while others are running."""
        arguments = self._structure.from_buffer_copy(self._template)
        arguments.sized = self._launcher.own
        return arguments

    def _put_given(self, arguments: Any, extras: Sequence[Tensor | None]) -> None:
        """Store the addresses of sinks, of lengths, and of the state of dropout."""
        a, b, c, d, state = extras
        pack_extras(
            arguments,
            EXTRAS_ADDRESS,
            0 if a is None else a.data_ptr(),
            0 if b is None else b.data_ptr(),
            0 if c is None else c.data_ptr(),
            0 if d is None else d.data_ptr(),
        )
        if state is not None:
            arguments.rng_state = state.data_ptr()

    @abstractmethod
    def prepare(
        self, call: AnyCall, sized: Sized, *, with_results: bool = True
    ) -> tuple[Any, Result]:
        """Check the tensors of a call, load its kernels, and allocate its result. Returns the
        kernel arguments and the result. Without results nothing is loaded or allocated, and their
        addresses are zero."""

    @abstractmethod
    def fill_idle(self, call: AnyCall, result: Result) -> None:
        """Fill the result of a call without a query or a key, without a launch."""

    @abstractmethod
    def inputs(self, call: AnyCall) -> dict[str, Tensor]:
        """The tensors that kernels read, by the argument that points at them."""

    @abstractmethod
    def outputs(self, problem: Any) -> dict[str, TensorView]:
        """The tensors that kernels write for a problem, by the argument that points at them."""

    @property
    def initial(self) -> dict[str, float]:
        """What all elements of a result are before the kernels run, if that matters."""
        return {}

    @abstractmethod
    def result(self, written: Mapping[str, Tensor]) -> Result:
        """Return the result of a call whose kernels wrote these tensors, by argument."""


class ForwardPreparation(Preparation[Call, Outputs]):
    """Prepares forward calls."""

    def __init__(
        self,
        call: Call,
        problem: Problem,
        views: Sequence[TensorView],
        recipe: Recipe,
        launcher: Launcher,
        alignment: int,
    ) -> None:
        super().__init__(recipe, launcher, call.extras(), alignment)
        self._output = views[3]
        self._d_v = problem.d_v
        self._like_q = problem.d_v == problem.d_head and call.q.dtype in tensors.DTYPES
        self._refusal = recipe.refusal
        self._is_idle = problem.idle
        self._is_packed = problem.total_q is not None
        self._returns_lse = bool(call.return_lse)
        self._heads_of_max = (problem.heads,) if call.return_max else None
        self._device = call.q.device
        # The memory of a given output is compared with that of the inputs.
        self._spans = () if call.out is None else tuple(view.layout.span for view in views)
        given = () if call.out is None else (*call[:3], call.out)
        self._strides = tuple(tensor.stride(0) * tensor.itemsize for tensor in given)
        self._sizes = problem.first_sizes

    def prepare(self, call: Call, sized: Sized, *, with_results: bool = True) -> tuple[Any, Any]:
        q, k, v, out = call[:4]
        q_pointer, k_pointer, v_pointer = q.data_ptr(), k.data_ptr(), v.data_ptr()
        o_pointer = 0 if out is None else out.data_ptr()
        if (q_pointer | k_pointer | v_pointer | o_pointer) % self._alignment:
            check_pointers(views_of(call), self._alignment)
        if out is not None:
            self._check_overlap(call, o_pointer, (q_pointer, k_pointer, v_pointer), sized)
        if self._refusal is not None and (why := self._refusal(call)):
            raise UnsupportedError(why)
        if _is_grad_enabled() or forward_ad._current_level >= 0:
            tensors.check_no_grad(call)
        if with_results and not (self._launcher.loaded or self._is_idle):
            self._launcher.load()
        try:
            arguments = self.spare.pop()
        except IndexError:
            arguments = self._new_arguments()
        if arguments.sized is not sized:
            arguments.put_lengths(sized.problem)
            arguments.sized, arguments.lse_form = sized, None
        lse, lse_pointer, maxima = None, 0, None
        if with_results:
            if out is None:
                out = _empty_like(q) if self._like_q else new_output(q, self._d_v)
                o_pointer = out.data_ptr()
            elif not out.is_inference():
                increment_version(out)
            if self._returns_lse:
                form = arguments.lse_form or self._put_lse_form(arguments, sized)
                lse = _empty_strided(*form, dtype=torch.float32, device=self._device)
                lse_pointer = lse.data_ptr()
            if self._heads_of_max is not None:
                maxima = new_maxima(self._heads_of_max, self._device)
                arguments.max_score = maxima.data_ptr()
        table = call[9]
        pack_forward(
            arguments,
            FORWARD_ADDRESS,
            *(q_pointer, k_pointer, v_pointer, o_pointer, lse_pointer),
            0 if table is None else table.data_ptr(),
        )
        if self._has_extras:
            self._put_given(arguments, call[4:9])
            for name in self._factors:
                setattr(arguments, name, getattr(call, name).data_ptr())
        if call.function is not None:
            put_function(arguments, call.function)
        if maxima is None:
            return arguments, out if lse is None else (out, lse)
        return arguments, (out, maxima) if lse is None else (out, lse, maxima)

    def _put_lse_form(self, arguments: Any, sized: Sized) -> tuple[tuple[int, ...], ...]:
        assert sized.problem is not None
        shape = sized.problem.lse_shape
        strides = (shape[1], 1) if len(shape) == 2 else (shape[1] * shape[2], shape[2], 1)
        arguments.lse_form = form = (shape, strides)
        return form

    def _check_overlap(
        self, call: Call, o_pointer: int, pointers: tuple[int, ...], sized: Sized
    ) -> None:
        spans = self._spans
        if sized.sizes:
            more_q, more_k = (a - b for a, b in zip(sized.sizes, self._sizes, strict=True))
            rows = zip(spans, (more_q, more_k, more_k, more_q), self._strides, strict=True)
            spans = tuple(span + more * stride for span, more, stride in rows)
        o_span = spans[3]
        for pointer, span in zip(pointers, spans, strict=False):
            if not (o_pointer + o_span <= pointer or pointer + span <= o_pointer):
                *inputs, o = views_of(call)
                return tensors.check_no_overlap(o, inputs)

    def fill_idle(self, call: Call, result: Outputs) -> None:
        out, *others = (result,) if isinstance(result, Tensor) else result
        with torch.inference_mode(out.is_inference()):
            out.zero_()
        if self._heads_of_max is not None:
            others.pop().fill_(-inf)
        for lse in others:
            fill_keyless(lse, call.sinks)

    def inputs(self, call: Call) -> dict[str, Tensor]:
        return {"q": call.q, "k": call.k, "v": call.v, **call.extras()}

    def outputs(self, problem: Problem) -> dict[str, TensorView]:
        found = {"o": resized_view(self._output, problem)}
        if self._returns_lse:
            shape = problem.lse_shape
            strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
            found["lse"] = TensorView("lse", shape, strides, torch.float32, self._device)
        if (of_heads := self._heads_of_max) is not None:
            found["max_score"] = TensorView("max", of_heads, (1,), torch.float32, self._device)
        return found

    @property
    def initial(self) -> dict[str, float]:
        return {} if self._heads_of_max is None else {"max_score": -inf}

    def result(self, written: Mapping[str, Tensor]) -> Outputs:
        out = written["o"][0] if self._is_packed else written["o"]
        return results(out, written.get("lse"), written.get("max_score"))


class BackwardPreparation(Preparation[BackwardCall, Gradients]):
    """Prepares backward passes."""

    def __init__(
        self,
        call: BackwardCall,
        problem: BackwardProblem,
        views: Sequence[TensorView],
        recipe: Recipe,
        launcher: Launcher,
        alignment: int,
    ) -> None:
        super().__init__(recipe, launcher, call.call.extras(), alignment)
        self._is_idle = problem.idle
        self._wants_dsinks = problem.wanted.dsinks
        self._is_packed = {
            "dq": problem.total_q is not None,
            "dk": problem.total_k is not None,
            "dv": problem.total_k is not None,
        }
        of_gradients = zip(views[1:4], views[5:], problem.wanted[:3], strict=True)
        self._outputs: dict[str, TensorView] = {}
        self._new: list[Callable[[Tensor], Tensor] | None] = []
        for tensor, gradient, is_wanted in of_gradients:
            # torch.empty_like is the fastest, where it gives a gradient its strides.
            new = _empty_like if gradient.strides == tensor.strides else new_gradient
            self._new.append(new if is_wanted else None)
            if is_wanted:
                self._outputs[gradient.name] = gradient
        if self._wants_dsinks:
            of_heads = ((problem.heads,), (1,), torch.float32, call.do.device)
            self._outputs["dsinks"] = TensorView("dsinks", *of_heads)

    def prepare(
        self,
        call: BackwardCall,
        sized: Sized,
        *,
        with_results: bool = True,
        into: Gradients | None = None,
    ) -> tuple[Any, Gradients]:
        """Prepare a pass, whose gradients may be stored `into` given ones."""
        do, of, lse, dlse = call[:4]
        if forward_ad._current_level >= 0:
            tensors.check_no_tangent(of, do, lse, dlse)
        arguments, gradients = self.fill(
            sized, do, *of[:4], lse, dlse, of[4:9], into if with_results else NO_GRADIENTS
        )
        if of.function is not None:
            put_function(arguments, of.function)
        return arguments, gradients

    def fill(
        self,
        sized: Sized,
        do: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor | None,
        lse: Tensor,
        dlse: Tensor | None,
        extras: Sequence[Tensor | None],
        into: Gradients | None = None,
    ) -> tuple[Any, Gradients]:
        """Prepare a pass of these tensors. New gradients are allocated, unless there are some to
        store `into`. `extras` are sinks, lengths and the state of dropout, as a call has them. No
        tensor has a tangent."""
        o_pointer = 0 if o is None else o.data_ptr()
        pointers = q.data_ptr(), k.data_ptr(), v.data_ptr(), o_pointer, do.data_ptr()
        a, b, c, d, e = pointers
        if (a | b | c | d | e) % self._alignment:
            named = zip(("do", "q", "k", "v", "o"), (do, q, k, v, o), strict=True)
            given = (TensorView.of(name, t) for name, t in named if t is not None)
            check_pointers(given, self._alignment)
        if not (self._launcher.loaded or self._is_idle or into is NO_GRADIENTS):
            self._launcher.load()
        if into is None:
            new_dq, new_dk, new_dv = self._new
            sinks = extras[0]
            into = Gradients(
                new_dq and new_dq(q),
                new_dk and new_dk(k),
                new_dv and new_dv(v),
                _empty_like(sinks) if sinks is not None and self._wants_dsinks else None,
            )
        dq, dk, dv, dsinks = into
        try:
            arguments = self.spare.pop()
        except IndexError:
            arguments = self._new_arguments()
        if arguments.sized is not sized:
            arguments.put_lengths(sized.problem)
            arguments.sized = sized
        pack_backward(
            arguments,
            BACKWARD_ADDRESS,
            *pointers,
            0 if dq is None else dq.data_ptr(),
            0 if dk is None else dk.data_ptr(),
            0 if dv is None else dv.data_ptr(),
            lse.data_ptr(),
            0 if dlse is None else dlse.data_ptr(),
            0 if dsinks is None else dsinks.data_ptr(),
        )
        if self._has_extras:
            self._put_given(arguments, extras)
        return arguments, into

    def fill_idle(self, call: BackwardCall, result: Gradients) -> None:
        for gradient in result:
            if gradient is not None:
                gradient.zero_()
        dsinks = result.dsinks
        if dsinks is not None and call.dlse is not None:
            # The lse of a row without keys is its sink.
            rows = call.dlse.transpose(-1, -2).flatten(end_dim=-2)
            if (starts := call.call.cu_seqlens_q) is not None:
                row = torch.arange(len(rows), device=rows.device)
                loose = (row < starts[0]) | (row >= starts[-1])
                rows = rows.masked_fill(loose[:, None], 0)
            dsinks += rows.sum(0)

    def inputs(self, call: BackwardCall) -> dict[str, Tensor]:
        do, (q, k, v, o, *_), lse, dlse = call[:4]
        named = {"d_o": do, "q": q, "k": k, "v": v, "o": o, "lse": lse, "dlse": dlse}
        given = {name: tensor for name, tensor in named.items() if tensor is not None}
        return given | call.call.extras()

    def outputs(self, problem: BackwardProblem) -> dict[str, TensorView]:
        return {
            name: view if name == "dsinks" else resized_view(view, problem)
            for name, view in self._outputs.items()
        }

    def result(self, written: Mapping[str, Tensor]) -> Gradients:
        found = {
            name: tensor[0] if self._is_packed.get(name) else tensor
            for name, tensor in written.items()
        }
        return Gradients(**found)
