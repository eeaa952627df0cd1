# SPDX-License-Identifier: Apache-2.0
"""The checks of a backward pass, before anything is compiled, allocated or written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from flash_attention.call import tensors
from flash_attention.call.backward_call import BackwardCall, BackwardProblem
from flash_attention.call.call import Call
from flash_attention.call.checks import check_call
from flash_attention.call.problem import Problem
from flash_attention.call.results import new_gradient, precision_of_lse
from flash_attention.call.tensors import TensorView, shown
from flash_attention.errors import UnsupportedError

LSE_DIMS = ("batch", "heads", "seq_q")


def check_backward_call(call: BackwardCall) -> tuple[BackwardProblem, list[TensorView]]:
    """Check a backward pass. Returns its problem, and views with a batch dimension of do, q, k, v,
    o, dq, dk and dv."""
    check_types(call)
    problem, views = check_call(call.call)
    do = TensorView.of("do", call.do)
    tensors.check_gradient(do, TensorView.of("o", call.call.out))
    check_rows(call, problem, views[0])
    given = BackwardProblem.of_pass(problem, call.wanted, call.deterministic)
    return given, [do.with_batch, *views_of_pass(call.call, views)[1:]]


def views_of_pass(call: Call, views: Sequence[TensorView]) -> list[TensorView]:
    """Return views of do, q, k, v, o, dq, dk and dv, from those of q, k, v and o. do is like o."""
    q, k, v, o = (replace(view, name=name) for name, view in zip("qkvo", views, strict=True))
    new = [
        replace(TensorView.of(f"d{view.name}", new_gradient(tensor, "meta")), device=view.device)
        for view, tensor in zip((q, k, v), call[:3], strict=True)
    ]
    return [replace(o, name="do"), q, k, v, o, *(view.with_batch for view in new)]


def check_types(call: BackwardCall) -> None:
    """Check that a call has a backward pass and an output, and sinks if their gradient is asked
    for."""
    tensors.check_16_bit(call.call)
    tensors.check_not_paged(call.call)
    if not isinstance(call.call.out, Tensor):
        raise UnsupportedError(
            f"o is a {type(call.call.out).__name__}; pass the output of the forward pass"
        )
    if call.wanted.dsinks and call.call.sinks is None:
        raise UnsupportedError("the gradient of sinks is wanted, and sinks is not given")


def check_rows(call: BackwardCall, problem: Problem, q: TensorView) -> None:
    """Check the lse of a call and its gradient."""
    _check_lse("lse", call.lse, problem, q)
    if call.dlse is not None:
        _check_lse("dlse", call.dlse, problem, q)


def _check_lse(name: str, lse: object, problem: Problem, q: TensorView) -> None:
    """Check lse or its gradient: float32, contiguous, with a number for every row of q."""
    if lse is None:
        raise UnsupportedError(
            f"{name} is missing; pass the log-sum-exp that the forward pass returns with"
            " return_lse=True"
        )
    view = TensorView.of(name, lse, LSE_DIMS)
    if view.shape != problem.lse_shape:
        raise UnsupportedError(
            f"{name} has shape {shown(view.shape)}; q has shape {shown(q.shape)}, so that"
            f" {name} has shape {shown(problem.lse_shape)}, as the forward pass returns it"
        )
    if view.dtype != precision_of_lse(problem.dtype):
        wanted = precision_of_lse(problem.dtype)
        raise UnsupportedError(f"{name} is {view.dtype}; it must be {wanted}")
    if view.device != q.device:
        raise UnsupportedError(f"{name} is on {view.device}, q is on {q.device}; move it there")
    if isinstance(lse, Tensor) and not lse.is_contiguous():
        raise UnsupportedError(
            f"{name} has strides {shown(view.strides)}; it must be contiguous, copy it with"
            f" {name}.contiguous()"
        )
