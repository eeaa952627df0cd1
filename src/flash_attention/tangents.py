# SPDX-License-Identifier: Apache-2.0
"""Derivatives of `attention` in forward mode: torch.func.jvp, jacfwd, and dual numbers.

On a GPU one kernel computes the output and its tangent. Reverse mode goes through the output, and
not through the tangent. On the CPU a call in forward mode is a composition of torch's operations,
which torch differentiates as often as it is asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.autograd import Function, forward_ad

from flash_attention.autograd import compute_recorded, differentiated, is_transformed
from flash_attention.call.call import Call
from flash_attention.call.options import check_options, check_switch
from flash_attention.call.problem import Problem
from flash_attention.call.results import results
from flash_attention.call.strict import strict_arch
from flash_attention.call.tangent_call import TangentCall, TangentProblem, check_has_tangent
from flash_attention.call.tensors import (
    TensorView,
    check_shapes,
    given_tensors,
    refuse_second_tangent,
)
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import UnsupportedError
from flash_attention.families.given import GivenConfig
from flash_attention.launch.compute import compute_tangent
from flash_attention.launch.preparation import Outputs
from flash_attention.ops import NO_BACKWARD_OPTIONS, BackwardOptions
from flash_attention.program.tangent import has_tangent
from flash_attention.reference.composite import attention_by_composition


def compute_in_forward_mode(
    call: Call, config: GivenConfig | None, validate: bool, backward: BackwardOptions
) -> Outputs | None:
    """Run a call whose tensors may have tangents. Returns None if they have none."""
    has_tangents = any(map(has_tangent, given_tensors(call)))
    if not has_tangents and not is_transformed():
        return None
    check_switch("validate", validate)
    by_torch = config is None and call.q.is_cpu
    if has_tangents or ((by_torch or _is_batched(call)) and not _lacks_tangent(call)):
        check_has_tangent(call)
        if by_torch:
            _check_as_a_plan(call)
            return _asked(call, *attention_by_composition(call))
        return with_tangents_by_kernel(call, config, backward)
    # Other transforms hide tangents, which are found below them.
    return compute_recorded(call, config, validate, backward)


def _is_batched(call: Call) -> bool:
    """Whether torch.vmap is the innermost transform, which hides tangents."""
    return any(map(_functorch.is_batchedtensor, call[:3]))


def _lacks_tangent(call: Call) -> bool:
    try:
        check_has_tangent(call)
    except UnsupportedError:
        return True
    return False


def _check_as_a_plan(call: Call) -> None:
    """Check a call that torch computes as the plan of a kernel is checked."""
    check_options(call)
    named = zip("qkv", call[:3], strict=True)
    q, k, v = (TensorView(name, tuple(t.shape), (), t.dtype, t.device) for name, t in named)
    check_shapes(q, k, v)
    if (arch := strict_arch()) is not None:
        select_config(TangentProblem.of_pass(Problem.of(call)), arch)


def _asked(call: Call, out: Tensor, lse: Tensor) -> Outputs:
    return results(out, lse if call.return_lse else None, None)


def with_tangents_by_kernel(
    call: Call,
    config: GivenConfig | None = None,
    backward: BackwardOptions = NO_BACKWARD_OPTIONS,
) -> Outputs:
    """Run a call with tangents by the kernel that computes both, which is emulated on the CPU."""
    options = _Options(call[4:], config, backward)
    if _is_batched(call):
        run: Callable[..., Any] = _BelowVmap.apply
        return _asked(call, *run(*call[:3], options))
    duals = [forward_ad.unpack_dual(tensor) for tensor in call[:3]]
    tangents = (
        torch.zeros_like(primal) if tangent is None else tangent.to(primal.dtype)
        for primal, tangent in duals
    )
    out, lse, *of_results = _below_jvp([*(t.primal for t in duals), *tangents], options)
    made = (forward_ad.make_dual(t, d) for t, d in zip((out, lse), of_results, strict=True))
    return _asked(call, *made)


def _below_jvp(tensors: Sequence[Tensor], options: _Options) -> tuple[Tensor, ...]:
    """Run a call whose tangents are arguments. If torch.func.jvp is the innermost transform, it has
    no part in that, and its rule for functions would take over a millisecond."""
    layer = _functorch.peek_interpreter_stack()
    if layer is None or layer.key() != _functorch.TransformType.Jvp:
        return _recorded(tensors, options)
    level = layer.level()
    with retrieve_current_functorch_interpreter().lower():
        found = _recorded([_functorch._unwrap_for_grad(t, level) for t in tensors], options)
    return tuple(_functorch._wrap_for_grad(t, level) for t in found)


def _recorded(tensors: Sequence[Tensor], options: _Options) -> tuple[Tensor, ...]:
    apply: Callable[..., Any] = _WithTangent.apply
    if not is_transformed():  # then nobody asks for the signature of a function
        apply = super(Function, _WithTangent).apply
    found: tuple[Tensor, ...] = apply(*tensors, options)
    return found


@dataclass(frozen=True)
class _Options:
    """A call without q, k, v and `out`. torch.func takes it as one argument, and not as many."""

    of_call: tuple[Any, ...]
    config: GivenConfig | None
    backward: BackwardOptions


class _WithTangent(Function):
    """The output of attention, its lse, and the tangents of both, of q, k, v and their tangents."""

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_tangent: Tensor,
        k_tangent: Tensor,
        v_tangent: Tensor,
        options: _Options,
    ) -> tuple[Tensor, ...]:
        call = Call(q, k, v, None, *options.of_call)
        asked = TangentCall(call, q_tangent, k_tangent, v_tangent)
        return tuple(compute_tangent(asked, options.config))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:3], *output[:2])
        ctx.set_materialize_grads(False)
        ctx.options = inputs[6]

    @staticmethod
    def backward(ctx: Any, do: Tensor | None, dlse: Tensor | None, *of_tangents: Any) -> Any:
        if any(gradient is not None for gradient in of_tangents):
            raise UnsupportedError(
                "the tangent of attention was differentiated, and on a GPU only its output is"
                " differentiable; detach the tangent, or call torch's"
                " scaled_dot_product_attention under sdpa_kernel(SDPBackend.MATH)"
            )
        needed = (*ctx.needs_input_grad[:3], False)
        of_call, backward = ctx.options.of_call, ctx.options.backward
        saved = (*ctx.saved_tensors, *of_call[:5])
        found = differentiated(needed, do, dlse, saved, of_call[6:], backward)
        return *found[:3], *(None,) * 4

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        apply: Callable[..., Any] = _WithTangent.apply
        found = apply(*_as_one_batch(info, in_dims, inputs[:6]), inputs[6])
        return _of_elements(info, found)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        refuse_second_tangent()


class _BelowVmap(Function):
    """A call inside of torch.vmap: below it, tangents are seen."""

    @staticmethod
    def forward(*inputs: Any) -> Any:
        raise AssertionError("torch.vmap calls its rule instead")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        options: _Options = inputs[3]
        q, k, v = _as_one_batch(info, in_dims, inputs[:3])
        call = Call(q, k, v, None, *options.of_call).with_lse()
        found = with_tangents_by_kernel(call, options.config, options.backward)
        return _of_elements(info, found)


def _as_one_batch(info: Any, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors whose batch has all elements of the dimension that torch.vmap hides."""
    return [
        (t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)).flatten(0, 1)
        for t, dim in zip(tensors, dims, strict=False)
    ]


def _of_elements(info: Any, found: Iterable[Tensor]) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Return results of one batch with a dimension of the elements, and where that is."""
    results = tuple(t.unflatten(0, (info.batch_size, -1)) for t in found)
    return results, (0,) * len(results)
