# SPDX-License-Identifier: Apache-2.0
"""Calls that have no gradient, of tensors that require one.

As in flash-attn the result is computed. Only a backward pass through it raises UnsupportedError.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function

from flash_attention.autograd import is_transformed
from flash_attention.call.call import Call
from flash_attention.errors import UnsupportedError
from flash_attention.families.gradients import check_differentiable

Cached = TypeVar("Cached", bound=Callable[..., Any])


def computed_alone(why: str, compute: Callable[[], Any], *tensors: Tensor | None) -> Any:
    """Return the results of `compute`, whose backward pass says why there is none. `tensors` are
    all that may require grad."""
    record: Callable[..., Any] = _ForwardOnly.apply
    return record(why, compute, *tensors)


def why_no_gradient(call: Call) -> str | None:
    """Say why a call has no gradient, if autograd expects one and can be told when it asks."""
    if torch.compiler.is_compiling() or is_transformed():
        return None
    if not (torch.is_grad_enabled() and call.needs_grad()):
        return None
    try:
        check_differentiable(call)
    except UnsupportedError as error:
        return str(error)
    return None


def of_a_cache(function: Cached) -> Cached:
    """Make a function of a KV cache compute what it is asked, whatever requires grad. A trace with
    a backward pass is refused."""
    why = (
        f"{function.__name__} has no gradient; call flash_attention.attention, which has one, or"
        " call this function under torch.no_grad()"
    )

    @wraps(function)
    def computed(*given: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return function(*given, **named)
        tensors = [t for t in (*given, *named.values()) if isinstance(t, Tensor)]
        if not any([tensor.requires_grad for tensor in tensors]):
            return function(*given, **named)
        if torch.compiler.is_compiling() or is_transformed():
            raise UnsupportedError(why)
        return computed_alone(why, partial(function, *given, **named), *tensors)

    return computed  # type: ignore[return-value]


class _ForwardOnly(Function):
    @staticmethod
    def forward(ctx: Any, why: str, compute: Callable[[], Any], *tensors: Tensor | None) -> Any:
        ctx.why = why
        ctx.set_materialize_grads(False)
        return compute()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        raise UnsupportedError(ctx.why)
