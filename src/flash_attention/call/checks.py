# SPDX-License-Identifier: Apache-2.0
"""The checks of a call that do not depend on the kernel, in the order they are applied."""

from __future__ import annotations

from dataclasses import replace

import torch

from flash_attention.call import options, tensors
from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.call.results import new_output
from flash_attention.call.tensors import DIMS, OUTPUT, Packing, TensorView
from flash_attention.errors import UnsupportedError


def views_of(call: Call) -> list[TensorView]:
    """Describe q, k, v and, if it is given, the output."""
    views = [TensorView.of(name, t) for name, t in zip("qkv", call[:3], strict=True)]
    return views if call.out is None else [*views, TensorView.of(OUTPUT, call.out)]


def check_dense(name: str, tensor: object, dims: tuple[str, ...] = DIMS) -> None:
    """Check that a value is a dense tensor with dimensions. It may have no memory."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_nested or tensor.layout != torch.strided:
        TensorView.of(name, tensor, dims)  # raises
    elif tensor.ndim == 0:
        raise UnsupportedError(
            f"{name} has no dimensions; pass a torch.Tensor of shape {tensors.shown(dims)}"
        )


def check_operands(call: Call) -> None:
    """Check that operators take what a call has. Its tensors may have no memory."""
    if call.function is not None and not torch.compiler.is_dynamo_compiling():
        raise UnsupportedError(
            "a score or mask function is given, and torch.export, torch.vmap, dispatch modes and"
            " tensors without memory are not supported with one; call attention outside of them"
        )
    for name, tensor in zip("qkv", call[:3], strict=True):
        check_dense(name, tensor)
    for name, tensor in call.extras().items():
        check_dense(name, tensor, (options.SIZES[name],))


def check_meaning(call: Call) -> None:
    """Check a call for kernels and for torch, without reading values."""
    options.check_options(call)
    q, k, v, *_ = views_of(call)
    tensors.check_shapes(q, k, v, Packing.of(call))
    options.check_extras(call, q, k)
    tensors.check_no_grad(call)


def check_call(call: Call, device: torch.device | None = None) -> tuple[Problem, list[TensorView]]:
    """Check a call that kernels are to run. Returns its problem, and q, k, v and the output with a
    batch dimension. The families say whether they take these.

    Meta tensors are treated as if they were on `device`.
    """
    options.check_options(call)
    views = views_of(call)
    given = views[:3]
    if device is not None and all(view.device.type == "meta" for view in given):
        given = [replace(view, device=device) for view in given]
    for view in given:
        tensors.check_kind(view)
    tensors.check_shapes(given[0], given[1], given[2], Packing.of(call))
    q, k, v = views[:3]
    options.check_extras(call, q, k)
    if call.out is None:
        room = TensorView.of(OUTPUT, new_output(call.q, v.shape[-1], device="meta"))
        views.append(replace(room, device=q.device))
    else:
        tensors.check_given_output(views[3], q, v)
    return Problem.of(call), [view.with_batch for view in views]


def explain_bad_key(call: Call) -> None:
    """Raise the error that explains why a call has no key."""
    views_of(call)
    options.check_options(call)
    options.check_types(call)
