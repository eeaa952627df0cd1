# SPDX-License-Identifier: Apache-2.0
"""Autograd of `attention` outside of traces, and in the transforms of torch.func everywhere.

The operators are differentiable too, but dispatching one takes the host several times as long, and
torch.func does not differentiate operators of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from flash_attention import ops
from flash_attention.call.backward_call import BackwardCall, BackwardProblem, Gradients, Wanted
from flash_attention.call.call import Call
from flash_attention.call.captured import (
    captured_gradients,
    check_unchanged,
    gathering,
    gathering_by_torch,
    versions_of,
)
from flash_attention.call.function import Function as UserFunction
from flash_attention.call.function import refuse_trained
from flash_attention.call.problem import Problem
from flash_attention.call.results import precision_of_lse
from flash_attention.call.schema import DIFFERENTIABLE
from flash_attention.call.strict import strict_arch
from flash_attention.call.tensors import refuse_second_tangent, refuse_tangent
from flash_attention.errors import UnsupportedError
from flash_attention.families.given import GivenConfig
from flash_attention.families.gradients import (
    check_differentiable,
    gathering_arches,
    slot_by_tiles,
)
from flash_attention.families.readable import backward_call_of
from flash_attention.kernel_configs import config_for
from flash_attention.launch.compute import compute, compute_gradients
from flash_attention.launch.device import device_arch
from flash_attention.launch.partners import run_partner
from flash_attention.launch.plans import known_plan
from flash_attention.launch.preparation import Outputs
from flash_attention.ops import BackwardOptions

_any_transforms: Callable[[], bool] = torch._C._are_functorch_transforms_active
_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_is_deterministic: Callable[[], bool] = torch.are_deterministic_algorithms_enabled


def is_transformed() -> bool:
    """Whether a transform of torch.func runs."""
    return _any_transforms()


# As torch.compiler.assume_constant_result marks a function that leaves nothing in a graph, but
# without importing the compiler.
is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def compute_traced(
    call: Call, config: GivenConfig | None, validate: bool, backward: BackwardOptions
) -> Outputs:
    """Run a call as operators that torch can trace, also if torch.func differentiates it."""
    if is_transformed() and torch.is_grad_enabled():
        # torch.compile knows of a view that it requires grad, but not of what a transform is given.
        given = {name: getattr(call, name) for name in DIFFERENTIABLE}
        views: dict[str, Any] = {n: t.view_as(t) for n, t in given.items() if isinstance(t, Tensor)}
        viewed = call._replace(**views)
        if viewed.needs_grad():
            return compute_recorded(viewed, config, validate, backward)
    return ops.traced(call, config, validate, backward)


def run_recorded(
    call: Call, config: GivenConfig | None, validate: bool, backward: BackwardOptions
) -> Outputs | None:
    """Run a call by its plan if that is known, and have autograd record it. No transform runs. A
    call whose tensors may have tangents is not run."""
    if forward_ad._current_level >= 0:
        return None
    plan = known_plan(call, config, with_lse=True)
    if plan is None:
        return None
    if not plan.model.is_differentiable:  # which follows from its key, whatever the lengths
        check_differentiable(call)
        plan.model.is_differentiable = True
    q, k, v, _, sinks = call[:5]
    trained = () if call.function is None else _trained(call)
    return _record(q, k, v, sinks, (call, plan, None, validate, backward), *trained)


def compute_recorded(
    call: Call, config: GivenConfig | None, validate: bool, backward: BackwardOptions
) -> Outputs:
    """Run a call as `compute` does, and have autograd record it."""
    check_differentiable(call)
    q, k, v, _, sinks = call[:5]
    if is_transformed():
        refuse_trained(call.function)
        apply: Callable[..., Any] = (_Traced if ops.is_traced(q, k, v) else _Attention).apply
        found = apply(q, k, v, *call[4:9], call[10:], config, validate, backward)
        return _asked(found, call)
    if getattr(q, "is_meta", False) and ops.lacks_memory(q, k, v):
        return ops.traced(call, config, validate, backward)
    return _record(q, k, v, sinks, (call, None, config, validate, backward), *_trained(call))


def _trained(call: Call) -> list[Tensor]:
    """Return the captured tensors whose gradients autograd expects."""
    check_trained(call)
    function = call.function
    return [] if function is None else [function.tensors[slot] for slot in function.trained()]


def check_trained(call: Call) -> None:
    """Raise UnsupportedError if a captured tensor requires grad, and no kernel of the GPU computes
    its gradient."""
    function = call.function
    if function is None or not (slots := function.trained()):
        return
    arch = device_arch(call.q.device.index) if call.q.is_cuda else strict_arch()
    if arch is None or arch.name in gathering_arches():
        return
    raise UnsupportedError(
        f"captured tensor {slots[0]} of the score or mask function requires grad, and {arch.name}"
        f" has no kernels for its gradient, which {', '.join(gathering_arches())} and the CPU"
        " compute; capture tensor.detach(), or call under torch.no_grad()"
    )


class _Recorded(Function):
    """Attention outside of transforms. autograd sees only the tensors that may have gradients, as
    every argument takes its time."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        asked: tuple[Any, ...],
        *captured: Tensor,
    ) -> Any:
        call, plan, config, validate, backward = asked
        found: Any
        if plan is None:
            found = compute(call.with_lse(), config, validate)
        else:
            found = plan.run(call, validate)
        sinks, starts_q, starts_k, used, state = call[4:9]
        shares = False
        if sinks is starts_q is starts_k is used is state is None and not captured:  # as mostly
            ctx.save_for_backward(q, k, v, *found[:2])
        else:
            shares = starts_k is starts_q is not None
            starts_k = None if shares else starts_k  # torch compares every tensor once
            given = (sinks, starts_q, starts_k, used, state, *captured)
            ctx.save_for_backward(q, k, v, *found[:2], *given)
        ctx.set_materialize_grads(False)
        function = call.function
        partner_of, versions = (plan, ()) if function is None else (None, versions_of(function))
        slots = function.trained() if captured else ()
        ctx.asked = partner_of, shares, call[10:], backward, slots, versions
        if call.return_max:
            ctx.mark_non_differentiable(found[2])
            return _asked(found, call)
        return found if call.return_lse else found[0]

    @staticmethod
    def backward(
        ctx: Any, do: Tensor | None, dlse: Tensor | None = None, of_maxima: None = None
    ) -> Any:
        plan, shares, options, backward, slots, versions = ctx.asked
        saved = ctx.saved_tensors  # which were not changed, those that are captured neither
        if versions:
            check_unchanged(versions)
        wanted = ctx.needs_input_grad
        if plan is not None and do is not None and not (_is_compiling() or _is_grad_enabled()):
            asked = (wanted, dlse is None, shares, backward, _is_deterministic())
            found = run_partner(plan, asked, do, saved, dlse, options)
            if found is not None:
                return *found, None
        if shares:
            saved = (*saved[:7], saved[6], *saved[8:])
        of_captured = tuple(s for s, need in zip(slots, wanted[5:], strict=True) if need)
        given = (do, dlse, saved[:10], options, backward)
        dq, dk, dv, dsinks, *others = differentiated(wanted, *given, of_captured)
        each = iter(others)
        return dq, dk, dv, dsinks, None, *(next(each) if need else None for need in wanted[5:])

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        refuse_tangent()


def _asked(found: tuple[Tensor, ...], call: Call) -> Outputs:
    """Return what a call asks for of the output, its lse, and perhaps maxima."""
    if call.return_lse:
        return found
    return (found[0], *found[2:]) if len(found) > 2 else found[0]


_record: Callable[..., Outputs] = super(Function, _Recorded).apply
"""`_Recorded.apply` without a search for dead tensors of transforms."""
# autograd's node calls `backward` itself, without looking for it among other rules.
_Recorded._backward_cls.apply = _Recorded.backward  # type: ignore[attr-defined]


class _Traced(Function):
    """Attention of q, k, v, sinks and lengths. Returns the output, its lse, and perhaps maxima."""

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
        rng_state: Tensor | None,
        options: tuple[Any, ...],
        config: GivenConfig | None,
        validate: bool,
        backward: BackwardOptions,
    ) -> Any:
        others = (cu_seqlens_q, cu_seqlens_k, seqused_k, rng_state)
        with_lse = (*options[:-1], True)
        call = Call(q, k, v, None, sinks, *others, None, *with_lse)
        if ops.is_traced(q, k, v) or is_transformed():
            return ops.traced(call, config, validate, backward)
        return compute(call, config, validate)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        options = inputs[8]
        ctx.save_for_backward(*inputs[:3], *output[:2], *inputs[3:8])
        ctx.set_materialize_grads(False)
        ctx.options, ctx.backward_options = options, inputs[-1]
        # The lse unless it is asked for, and maxima.
        ctx.mark_non_differentiable(*output[2 if options[-1] else 1 :])

    @staticmethod
    def backward(ctx: Any, do: Tensor | None, dlse: Tensor | None, of_maxima: None = None) -> Any:
        given = (ctx.saved_tensors, ctx.options, ctx.backward_options)
        return *differentiated(ctx.needs_input_grad, do, dlse, *given), *(None,) * 8


class _Attention(_Traced):
    """The same outside of traces. torch.compile follows no function with a rule for tangents, and
    no counts of changes."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _Traced.setup_context(ctx, inputs, output)
        function = Call._make((*inputs[:3], *(None,) * 7, *inputs[8])).function
        ctx.versions = () if function is None else versions_of(function)

    @staticmethod
    def backward(ctx: Any, do: Tensor | None, dlse: Tensor | None, of_maxima: None = None) -> Any:
        check_unchanged(ctx.versions)
        return _Traced.backward(ctx, do, dlse, of_maxima)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        refuse_second_tangent()


def differentiated(
    needed: tuple[bool, ...],
    do: Tensor | None,
    dlse: Tensor | None,
    saved: tuple[Tensor | None, ...],
    options: Sequence[Any],
    backward: BackwardOptions,
    slots: tuple[int, ...] = (),
) -> tuple[Tensor | None, ...]:
    """Return the gradients of q, k, v and sinks, if they are wanted, and those of the captured
    tensors in `slots`."""
    if do is None and dlse is None:
        return (None,) * (4 + len(slots))
    wanted = Wanted(*needed[:4])
    asked: tuple[Any, ...] = (do, dlse, wanted, slots, options, backward, *saved)
    if not _is_grad_enabled():
        return _gradients(*asked)
    record: Callable[..., Any] = _Gradients.apply
    found = iter(record(*asked))  # with create_graph autograd records this too
    return *(next(found) if is_wanted else None for is_wanted in wanted), *found


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
    wanted: Wanted,
    slots: tuple[int, ...],
    options: tuple[Any, ...],
    backward: BackwardOptions,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    rng_state: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    others = (cu_seqlens_q, cu_seqlens_k, seqused_k, rng_state)
    call = Call(q, k, v, out, sinks, *others, None, *options)
    config, deterministic = backward
    if do is None:
        do = torch.zeros_like(out)
    if ops.is_traced(q, k, v) or is_transformed():
        if slots:
            refuse_trained(call.function)
        traced = BackwardCall(do, call, lse, dlse, wanted, deterministic)
        return ops.traced_gradients(traced, config)
    deterministic = deterministic or _is_deterministic()
    if slots:
        call = call._replace(function=_gathering(call, slots, config, wanted, deterministic))
    asked = BackwardCall(do, call, lse, dlse, wanted, deterministic)
    found = _run(asked, config)
    return found if call.function is None else (*found, *captured_gradients(call.function))


def _gathering(
    call: Call,
    slots: tuple[int, ...],
    config: GivenConfig | None,
    wanted: Wanted,
    deterministic: bool,
) -> UserFunction:
    """Return the function of a call with memory for the gradients of captured tensors."""
    assert call.function is not None
    if config is None and call.q.is_cpu:
        return gathering_by_torch(call.function, slots, precision_of_lse(call.q.dtype))
    return gathering_by_kernels(call, slots, config, wanted, deterministic)


def gathering_by_kernels(
    call: Call,
    slots: tuple[int, ...],
    config: GivenConfig | None,
    wanted: Wanted,
    deterministic: bool,
) -> UserFunction:
    """Return it for kernels of a config, or of the one that is chosen."""
    assert call.function is not None
    problem = BackwardProblem.of_pass(Problem.of(call), wanted, deterministic)
    given = None if config is None else config_for(config, problem)
    by_tiles = slot_by_tiles(problem, slots, given)
    return gathering(call.function, slots, problem, deterministic=deterministic, by_tiles=by_tiles)


def _run(asked: BackwardCall, config: GivenConfig | None) -> Gradients:
    plan = known_plan(asked, config, by_key=False)
    if plan is not None:
        try:
            return plan.run(asked)
        except UnsupportedError:  # of an address; the strides are those of the plan
            pass
    do, call, lse, dlse, wanted, deterministic = asked
    return compute_gradients(backward_call_of(do, call, lse, dlse, wanted, deterministic), config)
