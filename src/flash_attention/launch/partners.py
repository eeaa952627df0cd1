# SPDX-License-Identifier: Apache-2.0
"""Partners: the plans of the backward passes of a forward call, kept with the call's own plan.

A training step finds the plan of its backward pass with one look at what the forward pass has left,
without a new call and its key. Autograd guarantees the gradient's shape, and that saved tensors are
those of the forward pass unless hooks have exchanged them. So torch compares all of them in C++
with those that the plan was found for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad, profiler

from flash_attention.call.backward_call import BackwardCall, BackwardProblem, Gradients, Wanted
from flash_attention.call.call import Call, kin_sizes
from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.families.given import GivenConfig
from flash_attention.launch.kin import Key, TensorGuards, comparison
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import known_plan

NO_EXTRAS = (None,) * 5
_numel = Tensor.numel
_any_transforms: Callable[[], bool] = torch._C._are_functorch_transforms_active
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_is_tracing: Callable[[], bool] = torch._C._is_tracing


Asked = tuple[tuple[bool, ...], bool, bool, tuple[GivenConfig | None, bool], bool]
"""What a forward pass has several partners for: which gradients are needed, of q, k, v, sinks and
perhaps more; whether there is no gradient of lse; whether queries and keys share their lengths,
which are then saved once; the config, and whether it is deterministic; whether all of torch is."""


class Partner(NamedTuple):
    """The plan of a backward pass, and the tensors that it is for."""

    plan: Plan
    are_alike: Callable[..., bool]  # compares tensors, apart from the lengths of packed ones
    numels: Key | None  # of the same tensors if they are packed


def run_partner(
    plan: Plan,
    asked: Asked,
    do: Tensor,
    saved: Sequence[Any],
    dlse: Tensor | None,
    options: Sequence[Any],
) -> Gradients | None:
    """Run the backward pass of a call that ran by a plan. None if it is not known yet how a GPU
    runs it, or if torch traces, transforms, differentiates or profiles it.

    `saved` are q, k, v, the output, its lse, and perhaps sinks, lengths and the state of dropout.
    `options` are the fields of the call after its block table.
    """
    if _modes() or _is_tracing() or _any_transforms():
        return None
    if forward_ad._current_level >= 0 or profiler._is_profiler_enabled:
        return None
    tensors = [do, *saved] if dlse is None else [do, *saved, dlse]
    extras = saved[5:]
    if extras:
        tensors = [tensor for tensor in tensors if tensor is not None]
        if asked[2]:  # shares
            extras = (extras[0], extras[1], extras[1], *extras[3:])
    else:
        extras = NO_EXTRAS
    partner = plan.partners.get(asked)
    if (
        partner is None
        or not partner[1](*tensors)
        or (partner[2] is not None and not _have_lengths(partner[2], tensors, saved[4], dlse))
    ):
        partner = _new_partner(plan, asked, tensors, saved, dlse, (*extras, None, *options))
        if partner is None:
            return None
    backward = partner[0]
    preparation: Any = backward.preparation
    sized = backward.sized
    result: Gradients
    try:
        arguments, result = preparation.fill(sized, do, *saved[:5], dlse, extras)
    except UnsupportedError:  # of an address, whose tensor can be copied
        return None
    backward.launcher.launch(arguments, sized)
    preparation.spare.append(arguments)
    return result


def _have_lengths(numels: Key, tensors: Sequence[Tensor], lse: Tensor, dlse: Tensor | None) -> bool:
    """Whether packed tensors have as many elements, and the strides that depend on lengths."""
    if dlse is not None and not dlse.is_contiguous():
        return False
    return lse.is_contiguous() and tuple(map(_numel, tensors)) == numels


def _new_partner(
    plan: Plan,
    asked: Asked,
    tensors: Sequence[Tensor],
    saved: Sequence[Any],
    dlse: Tensor | None,
    options: Sequence[Any],
) -> Partner | None:
    """Find the plan of a backward pass and keep it with that of its forward pass. None if it is not
    known yet, or if no kernel of a GPU runs it."""
    kept = plan.models.get(asked)
    if kept is not None and not kept[0](*tensors):
        kept = None
    found = None
    if kept is not None and kept[1].is_resizable:
        found = _resized(kept[1], plan.problem, tensors, saved, dlse)
    if kept is None or found is None:
        needed, _, _, (config, deterministic), everywhere = asked
        q, k, v, out, lse = saved[:5]
        wanted, of = Wanted(*needed[:4]), Call(q, k, v, out, *options)
        call = BackwardCall(tensors[0], of, lse, dlse, wanted, deterministic or everywhere)
        found = known_plan(call, config, by_key=False)
        if found is None or not found.launches or TensorGuards is None:
            return None
        agreed = _agreed(call, tensors, found.problem.per_batch)
        plan.models[asked] = kept = comparison(tensors, agreed), found.model
    numels = tuple(map(_numel, tensors)) if found.problem.per_batch else None
    plan.partners[asked] = made = Partner(found, kept[0], numels)
    return made


def _resized(
    model: Plan,
    forward: Problem,
    tensors: Sequence[Tensor],
    saved: Sequence[Any],
    dlse: Tensor | None,
) -> Plan | None:
    """Return the plan of a backward pass that follows from another one, if the tensors have the
    lengths of the forward pass's problem."""
    assert isinstance(model.problem, BackwardProblem)
    problem = model.problem.with_lengths_of(forward)
    q, k, v, out, lse, *extras = saved
    rows_q, rows_k = problem.first_sizes
    of_q = tensors[0].shape[0] == q.shape[0] == out.shape[0] == rows_q
    if problem.idle or not (of_q and k.shape[0] == v.shape[0] == rows_k):
        return None
    for statistic in (lse,) if dlse is None else (lse, dlse):
        if statistic.shape != problem.lse_shape or not statistic.is_contiguous():
            return None
    for lengths, more in zip(extras[1:4], (1, 1, 0), strict=False):  # starts have their end too
        if lengths is not None and lengths.shape[0] != problem.batch + more:
            return None
    return model.sized_for(problem)


def _agreed(call: BackwardCall, tensors: Sequence[Tensor], is_packed: bool) -> list[Any]:
    """Return the sizes and strides that tensors of a pass have in common with these."""
    if not is_packed:
        return [(tensor.shape, tensor.stride()) for tensor in tensors]
    names = {id(tensor): name for name, tensor in call.tensors().items()}
    return [kin_sizes(names[id(tensor)], tensor) for tensor in tensors]
