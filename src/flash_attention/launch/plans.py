# SPDX-License-Identifier: Apache-2.0
"""The plans of this process by their keys, and the recent ones, which are found without a key.

torch compares tensors with the types, shapes, strides and devices of earlier ones in C++, as it
does before it runs a compiled function. That takes a third of the time of making a key of them.
One plan is noted for each kind of call. The numbers of elements of q and of k belong to the kind,
so that programs whose calls alternate between lengths find the plans of all of them. Calls whose
sequences have lengths of their own are found among their kin instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NoReturn, TypeVar

from torch import Tensor

from flash_attention.call.any_call import AnyCall, check_any_call
from flash_attention.call.backward_call import BackwardCall
from flash_attention.call.call import Call
from flash_attention.call.checks import explain_bad_key
from flash_attention.call.tangent_call import TangentCall
from flash_attention.families.config import is_config
from flash_attention.families.given import GivenConfig, read_config
from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import as_kernel_config
from flash_attention.launch.device import CPU
from flash_attention.launch.kin import Key, Kindred, TensorGuards, comparison
from flash_attention.launch.plan import Plan

MAX_PLANS = 8192  # beyond that all are dropped, for programs whose shapes keep changing
PASSES = {Call: Pass.FORWARD, BackwardCall: Pass.BACKWARD, TangentCall: Pass.TANGENT}
Planned = TypeVar("Planned")


class Plans(Generic[Planned]):
    """Plans by everything that they depend on."""

    def __init__(self) -> None:
        self._planned: dict[Key, Planned] = {}
        self._recent: dict[Key, tuple[Callable[..., bool], Planned]] = {}
        self.get = self._planned.get
        self.noted = self._recent.get
        """Returns what `recent` compares tensors with, and the plan of a kind of call."""

    def add(self, key: Key, plan: Planned) -> None:
        """Keep a plan under its key."""
        if len(self._planned) >= MAX_PLANS:
            self.clear()
        self._planned[key] = plan

    def recent(self, kind: Key, *tensors: Tensor) -> Planned | None:
        """Return the last plan that was noted for a kind of call, if these tensors are like those
        that it was noted for."""
        noted = self._recent.get(kind)
        return noted[1] if noted is not None and noted[0](*tensors) else None

    def note(self, plan: Planned, kind: Key, *tensors: Tensor) -> None:
        """Note the plan of a call. `kind` has the part of its key that is no part of `tensors`."""
        if TensorGuards is None or len(set(map(id, tensors))) < len(tensors):
            return  # to torch, a tensor that is passed twice is like nothing
        if len(self._recent) >= MAX_PLANS:
            self._recent.clear()
        self._recent[kind] = comparison(tensors, [(t.shape, t.stride()) for t in tensors]), plan

    def clear(self) -> None:
        """Forget all plans."""
        self._planned.clear()
        self._recent.clear()


_plans: Plans[Plan] = Plans()
_kindred = Kindred()


def forget_plans() -> None:
    """Forget all plans, so that kernels are chosen again."""
    _plans.clear()
    _kindred.clear()


def known_plan(
    call: AnyCall,
    config: GivenConfig | None = None,
    *,
    with_lse: bool = False,
    by_key: bool = True,
) -> Plan | None:
    """Return the plan of a call if one with its key was planned before. A call on the CPU without
    a config has none. This runs in every call.

    The plan `with_lse` returns the log-sum-exp even if the call does not ask for it. If it is not
    looked up `by_key`, only a recent plan is found.
    """
    try:
        kind, tensors, lengths = call.kind_and_tensors(with_lse)
        kind = (config, kind)
        plan: Plan | None = None
        if lengths is not None:
            plan = _kindred.find(call, kind, tensors, lengths)
        else:
            noted = _plans.noted(kind)
            if noted is not None and noted[0](*tensors):
                plan = noted[1]
        if plan is None:
            if not by_key:
                return None
            planned = call.with_lse() if with_lse and isinstance(call, Call) else call
            plan = _plans.get((config, planned.key()))
            if plan is not None:
                _note(plan, call, kind, tensors, lengths)
    except Exception:  # of an argument that has no key, which the checks of a new plan refuse
        return None
    return None if plan is None or (plan.device_index == CPU and config is None) else plan


def _note(
    plan: Plan,
    call: AnyCall,
    kind: Key,
    tensors: Sequence[Tensor],
    lengths: Key | None,
) -> None:
    """Note the plan of a call, to be found without its key."""
    if lengths is None:
        _plans.note(plan, kind, *tensors)
    else:
        _kindred.note(plan, call, kind, tensors, lengths)


def plan_for(call: AnyCall, config: GivenConfig | None = None) -> Plan:
    """Return the plan of a call. A new key is checked first. Nothing is compiled."""
    which = PASSES[type(call)]
    try:
        kind, tensors, lengths = call.kind_and_tensors()
        if lengths is not None:
            found = _kindred.find(call, (config, kind), tensors, lengths)
            if found is not None:
                return found
        key = (config, call.key())
        plan = _plans.get(key)
    except Exception as error:
        if _may_change(config):
            return plan_for(call, read_config(config, which))
        _explain(error, call, config, which)
    if plan is None:
        if _may_change(config):
            return plan_for(call, read_config(config, which))
        plan = Plan(call, config)
        _plans.add(key, plan)
        if lengths is not None:  # the next call has others
            _kindred.note(plan, call, (config, kind), tensors, lengths)
    return plan


def _may_change(config: object) -> bool:
    """Whether a config is an object of another class, which may change and cannot be a key."""
    return not (config is None or isinstance(config, str) or is_config(config))


def _explain(error: Exception, call: AnyCall, config: GivenConfig | None, which: Pass) -> NoReturn:
    """Raise the error that explains which argument has no key, else `error`."""
    if config is not None:
        as_kernel_config(config, pass_=which)
    if isinstance(call, Call):
        explain_bad_key(call)
    else:
        check_any_call(call)
    raise error
