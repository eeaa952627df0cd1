# SPDX-License-Identifier: Apache-2.0
"""Run calls of all passes on the device of their tensors."""

from __future__ import annotations

from contextlib import suppress

import torch

from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.call.call import Call
from flash_attention.call.options import check_switch
from flash_attention.call.results import results
from flash_attention.call.tangent_call import TangentCall, WithTangent
from flash_attention.errors import UnsupportedError
from flash_attention.families.given import GivenConfig
from flash_attention.families.readable import tangent_call_of
from flash_attention.launch.plans import known_plan, plan_for
from flash_attention.launch.preparation import Outputs
from flash_attention.launch.strict import check_as_on_a_gpu
from flash_attention.reference.cpu import attention_on_cpu, checked_on_cpu


def compute(call: Call, config: GivenConfig | None = None, validate: bool = False) -> Outputs:
    """Run a call: with torch on the CPU if there is no config, else with the planned kernel."""
    plan = known_plan(call, config)
    if plan is None:
        if config is None and getattr(call.q, "is_cpu", False):
            check_switch("validate", validate)
            check_as_on_a_gpu(call)
            return results(*attention_on_cpu(call))
        plan = plan_for(call, config)
    return plan.run(call, validate)


def check_computable(call: Call, config: GivenConfig | None, validate: bool) -> None:
    """Raise what `compute` raises for a call before it computes anything. Nothing is compiled."""
    with torch.no_grad():
        if config is None and call.q.is_cpu:
            check_switch("validate", validate)
            check_as_on_a_gpu(call)
            checked_on_cpu(call)
        else:
            (known_plan(call, config) or plan_for(call, config)).check(call, validate)


def compute_gradients(call: BackwardCall, config: GivenConfig | None = None) -> Gradients:
    """Run a backward pass: with torch on the CPU if there is no config, else with kernels."""
    plan = known_plan(call, config)
    if plan is None:
        if config is None and call.do.is_cpu:
            check_as_on_a_gpu(call)
            from flash_attention.reference.gradients import gradients_on_cpu  # loaded when used

            return gradients_on_cpu(call)
        plan = plan_for(call, config)
    return plan.run(call)


def compute_tangent(asked: TangentCall, config: GivenConfig | None = None) -> WithTangent:
    """Run a call with tangents by a kernel, which is emulated on the CPU."""
    plan = known_plan(asked, config, by_key=False)
    if plan is not None:
        with suppress(UnsupportedError):  # of an address; the strides are those of the plan
            return plan.run(asked)
    asked = tangent_call_of(asked)
    return (known_plan(asked, config) or plan_for(asked, config)).run(asked)
