# SPDX-License-Identifier: Apache-2.0
"""Backward passes of the calls of `feature_cases`, and how their gradients are judged."""

from __future__ import annotations

import torch

from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import ALL, BackwardCall, Gradients, Wanted
from flash_attention.call.backward_checks import check_backward_call
from flash_attention.families.config import KernelConfig
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm80.backward.heuristic import heuristic
from flash_attention.launch.emulation import BackwardEmulation, Settings, emulate_backward_plan
from flash_attention.launch.plan import Plan
from flash_attention.reference.formula import evaluate
from flash_attention.reference.gradient_judge import GradientJudge
from tests.feature_cases import MadeCase


def backward_of(
    made: MadeCase, wanted: Wanted = ALL, *, deterministic: bool = False, with_dlse: bool = False
) -> BackwardCall:
    """A backward pass of a case with random gradients of its results."""
    call = made.call()
    out, lse = evaluate(call, torch.float64, lse=True)
    generator = torch.Generator().manual_seed(7)
    do = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(made.q)
    dlse = torch.randn(lse.shape, generator=generator).to(lse.device) if with_dlse else None
    forward = call._replace(out=out.to(made.q.dtype))
    return BackwardCall(do, forward, lse.float(), dlse, wanted, deterministic)


def assert_right(gradients: Gradients, call: BackwardCall) -> None:
    """Each wanted gradient is within the tolerance of 16-bit gradients, and the others are None."""
    given = {name: gradient is not None for name, gradient in gradients._asdict().items()}
    assert given == call.wanted._asdict()
    judge = GradientJudge(call.call, call.do, call.dlse, call.wanted)
    for name, check in judge.check(gradients).items():
        assert check.ok, f"{name}: {check}"


def flash_config(call: BackwardCall, arch: str) -> FlashBackwardKernelConfig:
    """The config that the sm_80 family chooses on an architecture."""
    problem, _ = check_backward_call(call)
    config = heuristic(problem, ARCHES[arch])
    assert isinstance(config, FlashBackwardKernelConfig), config
    return config


def emulated_backward(
    call: BackwardCall, config: KernelConfig, *, arch: str = "sm_80", schedule: str = "lockstep"
) -> BackwardEmulation:
    """A backward pass in the emulator, where nothing may be found."""
    plan = Plan(call, config, ARCHES[arch])
    result = emulate_backward_plan(plan, call, Settings(schedule))
    assert list(map(str, result.findings)) == []
    return result
