# SPDX-License-Identifier: Apache-2.0
"""The part of `check` that looks at gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from flash_attention.call.backward_call import (
    BackwardCall,
    Gradients,
    Wanted,
)
from flash_attention.call.call import Call
from flash_attention.families.readable import backward_call_of
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import plan_for
from flash_attention.ops import BackwardOptions
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention.reference.gradients import gradients_on_cpu
from flash_attention.reference.judge import Check

SEED = 1  # of the gradients of the results


@dataclass(frozen=True)
class GradientReport:
    """The errors of a call's gradients against the float64 oracle."""

    computed_by: str  # the kernels' config, or torch
    deterministic: bool
    heads: tuple[int, ...]  # the checked heads of q; the others may not contain NaN
    checks: Mapping[str, Check]  # by the name of the gradient

    @property
    def ok(self) -> bool:
        """Whether all gradients pass."""
        return all(check.ok for check in self.checks.values())


def random_gradients_of(out: Tensor, lse: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return normally distributed gradients of an output and of an lse, if there is one."""
    generator = torch.Generator(out.device).manual_seed(SEED)

    def normal(like: Tensor) -> Tensor:
        drawn = torch.randn(like.shape, generator=generator, device=like.device)
        return drawn.to(like.dtype)

    return normal(out), None if lse is None else normal(lse)


def check_gradients(
    call: Call, lse: Tensor, options: BackwardOptions, *, emulate: bool, scores: int, by_torch: str
) -> GradientReport:
    """Run the backward pass of a call whose `out` is its output, and judge all gradients. That of
    lse is given if the call returns it. `by_torch` is what to say where torch computes."""
    assert call.out is not None
    do, dlse = random_gradients_of(call.out, lse if call.return_lse else None)
    wanted = Wanted(dsinks=call.sinks is not None)
    backward = backward_call_of(do, call, lse, dlse, wanted, options.deterministic)
    if do.is_cpu and options.config is None and not emulate:
        gradients, computed_by = gradients_on_cpu(backward), by_torch
    else:
        plan = plan_for(backward, options.config)
        gradients = gradients_over_nan(plan, backward)
        where = "the emulator" if do.is_cpu else torch.cuda.get_device_name(do.device)
        computed_by = f"{plan.config.short_form()}, on {where}"
    judge = GradientJudge(call, do, dlse, wanted, scores=scores)
    return GradientReport(
        computed_by, backward.deterministic, tuple(judge.heads), judge.check(gradients)
    )


def gradients_over_nan(plan: Plan, call: BackwardCall) -> Gradients:
    """The gradients; on a GPU, what the kernels do not store is NaN."""
    if plan.idle or call.do.is_cpu:
        return plan.run(call)
    arguments, gradients = plan.prepare(call)
    for gradient in gradients:
        if gradient is not None:
            gradient.fill_(math.nan)
    plan.launch(call, arguments, gradients)
    return gradients
