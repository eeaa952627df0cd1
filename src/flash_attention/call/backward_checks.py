# SPDX-License-Identifier: Apache-2.0
"""The checks of a backward pass, before anything is compiled, allocated or written."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from flash_attention.call import tensors
from flash_attention.call.backward_call import BackwardCall, BackwardProblem
from flash_attention.call.checks import check_call
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView, shown
from flash_attention.errors import UnsupportedError

LSE_DIMS = ("batch", "heads", "seq_q")


def check_backward_call(call: BackwardCall) -> tuple[BackwardProblem, list[TensorView]]:
    """Check a backward pass. Returns its problem, and views with a batch dimension of do, q, k, v,
    o, dq, dk and dv."""
    check_differentiable(call)
    if not isinstance(call.call.out, Tensor):
        raise UnsupportedError(
            f"o is a {type(call.call.out).__name__}; pass the output of the forward pass"
        )
    problem, views = check_call(call.call)
    q, k, v, o = (replace(view, name=name) for name, view in zip("qkvo", views, strict=True))
    do = TensorView.of("do", call.do)
    tensors.check_gradient(do, TensorView.of("o", call.call.out))
    check_lse("lse", call.lse, problem, q)
    if call.dlse is not None:
        check_lse("dlse", call.dlse, problem, q)
    if call.wanted.dsinks and call.call.sinks is None:
        raise UnsupportedError("the gradient of sinks is wanted, and sinks is not given")
    new = [_like(name, view) for name, view in (("dq", q), ("dk", k), ("dv", v))]
    given = BackwardProblem.of_pass(problem, call.wanted, call.deterministic)
    return given, [do.with_batch, q, k, v, o, *new]


def check_differentiable(call: BackwardCall) -> None:
    """Check that the forward call has a backward pass."""
    if call.call.block_table is not None:
        raise UnsupportedError(
            "block_table is given, and there are no gradients of a paged KV cache; pass k and v as"
            " dense tensors, or call under torch.no_grad()"
        )


def check_lse(name: str, lse: object, problem: Problem, q: TensorView) -> None:
    """Check lse or its gradient: float32, contiguous, with a number for every row of q."""
    view = TensorView.of(name, lse, LSE_DIMS)
    if view.shape != problem.lse_shape:
        raise UnsupportedError(
            f"{name} has shape {shown(view.shape)}; q has shape {shown(q.shape)}, so that"
            f" {name} has shape {shown(problem.lse_shape)}, as the forward pass returns it"
        )
    if view.dtype != torch.float32:
        raise UnsupportedError(f"{name} is {view.dtype}; it must be torch.float32")
    if view.device != q.device:
        raise UnsupportedError(f"{name} is on {view.device}, q is on {q.device}; move it there")
    if isinstance(lse, Tensor) and not lse.is_contiguous():
        raise UnsupportedError(
            f"{name} has strides {shown(view.strides)}; it must be contiguous, copy it with"
            f" {name}.contiguous()"
        )


def _like(name: str, view: TensorView) -> TensorView:
    """Describe a gradient: with the strides of its tensor if that has no gaps and no overlaps."""
    room = torch.empty_strided(view.shape, view.strides, dtype=view.dtype, device="meta")
    like = torch.empty_like(room)
    if like.stride() != view.strides or (like.shape[-1] > 1 and like.stride(-1) != 1):
        like = torch.empty(view.shape, dtype=view.dtype, device="meta")
    return replace(view, name=name, strides=like.stride(), pointer=0)
