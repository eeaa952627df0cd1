# SPDX-License-Identifier: Apache-2.0
"""Autograd of `attention` outside of traces, and in the transforms of torch.func everywhere.

The operators are differentiable too, but dispatching one takes the host several times as long, and
torch.func does not differentiate operators of Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from flash_attention import ops
from flash_attention.call.backward_call import BackwardCall, Gradients, Wanted, backward_call_of
from flash_attention.call.call import Call
from flash_attention.call.tensors import check_differentiable, refuse_tangent
from flash_attention.families.given import GivenConfig
from flash_attention.launch.backward import compute_gradients
from flash_attention.launch.compute import compute
from flash_attention.ops import BackwardOptions

_any_transforms: Callable[[], bool] = torch._C._are_functorch_transforms_active


def is_transformed() -> bool:
    """Whether a transform of torch.func runs."""
    return _any_transforms()


# As torch.compiler.assume_constant_result marks a function that leaves nothing in a graph, but
# without importing the compiler.
is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def compute_traced(
    call: Call, config: GivenConfig | None, validate: bool, backward: BackwardOptions
) -> Tensor | tuple[Tensor, Tensor]:
    """Run a call as operators that torch can trace, also if torch.func differentiates it."""
    if is_transformed() and torch.is_grad_enabled():
        # torch.compile knows of a view that it requires grad, but not of what a transform is given.
        given = {name: getattr(call, name) for name in ops.DIFFERENTIABLE}
        views: dict[str, Any] = {n: t.view_as(t) for n, t in given.items() if isinstance(t, Tensor)}
        viewed = call._replace(**views)
        if viewed.needs_grad:
            return compute_recorded(viewed, config, validate, backward)
    return ops.traced(call, config, validate, backward)


def compute_recorded(
    call: Call, config: GivenConfig | None, validate: bool, backward: BackwardOptions
) -> Tensor | tuple[Tensor, Tensor]:
    """Run a call as `compute` does, and have autograd record it."""
    check_differentiable(call)
    q, k, v, _, sinks, cu_seqlens_q, cu_seqlens_k, seqused_k = call[:8]
    apply = _record
    if is_transformed():
        apply = (_Traced if ops.is_traced(q, k, v) else _Attention).apply
    elif getattr(q, "is_meta", False) and ops.lacks_memory(q, k, v):
        return ops.traced(call, config, validate, backward)
    out, lse = apply(
        *(q, k, v, sinks, cu_seqlens_q, cu_seqlens_k, seqused_k, call[9:], config, validate),
        backward,
    )
    return (out, lse) if call.return_lse else out


class _Traced(Function):
    """Attention of q, k, v, sinks and lengths. Returns the output and its lse."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        cu_seqlens_q: Tensor | None,
        cu_seqlens_k: Tensor | None,
        seqused_k: Tensor | None,
        options: tuple[Any, ...],
        config: GivenConfig | None,
        validate: bool,
        backward: BackwardOptions,
    ) -> Any:
        lengths = (cu_seqlens_q, cu_seqlens_k, seqused_k)
        with_lse = (*options[:-1], True)
        call = Call(q, k, v, None, sinks, *lengths, None, *with_lse)
        if ops.is_traced(q, k, v) or is_transformed():
            return ops.traced(call, config, validate, backward)
        return compute(call, config, validate)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        out, lse = output
        options = inputs[7]
        ctx.save_for_backward(*inputs[:7], out, lse)
        ctx.set_materialize_grads(False)
        ctx.options, ctx.backward_options = options, inputs[-1]
        if not options[-1]:  # return_lse
            ctx.mark_non_differentiable(lse)

    @staticmethod
    def backward(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> Any:
        none = (None,) * 7
        if do is None and dlse is None:
            return None, None, None, None, *none
        wanted = Wanted(*ctx.needs_input_grad[:4])
        asked = (do, dlse, *ctx.saved_tensors, ctx.options, wanted, ctx.backward_options)
        if not torch.is_grad_enabled():
            return *_gradients(*asked), *none
        record: Callable[..., Any] = _Gradients.apply
        found = iter(record(*asked))  # with create_graph autograd records this too
        return *(next(found) if is_wanted else None for is_wanted in wanted), *none


class _Attention(_Traced):
    """The same with an error of its own for tangents. torch.compile follows no function with a
    rule for tangents."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        refuse_tangent()


_record: Callable[..., Any] = super(Function, _Attention).apply
"""`_Attention.apply` outside of transforms, without inspecting the signature of forward."""


class _Gradients(Function):
    """The wanted gradients, which are not differentiable."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*asked: Any) -> tuple[Tensor, ...]:
        return tuple(gradient for gradient in _gradients(*asked) if gradient is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ops.refuse_second_gradient(ctx, *gradients)


def _gradients(
    do: Tensor | None,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    seqused_k: Tensor | None,
    out: Tensor,
    lse: Tensor,
    options: tuple[Any, ...],
    wanted: Wanted,
    backward: BackwardOptions,
) -> Gradients:
    call = Call(q, k, v, out, sinks, cu_seqlens_q, cu_seqlens_k, seqused_k, None, *options)
    config, deterministic = backward
    if do is None:
        do = torch.zeros_like(out)
    if ops.is_traced(q, k, v) or is_transformed():
        traced = BackwardCall(do, call, lse, dlse, wanted, deterministic)
        return ops.traced_gradients(traced, config)
    return compute_gradients(backward_call_of(do, call, lse, dlse, wanted, deterministic), config)
