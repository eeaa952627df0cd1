# SPDX-License-Identifier: Apache-2.0
"""Backward passes of the calls of `feature_cases`, and how their gradients are judged."""

from __future__ import annotations

import torch
from torch import Tensor

from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import ALL, BackwardCall, Gradients, Wanted
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch.backward import BackwardPlan
from flash_attention.launch.backward_emulation import BackwardEmulation, emulate_backward_plan
from flash_attention.launch.emulation import Settings
from flash_attention.reference.formula import evaluate
from flash_attention.reference.gradients import evaluate_gradients
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
    """Each wanted gradient is within twice the error of the same formulas in 16 bits, and those
    that are not wanted are None."""
    exact = evaluate_gradients(call, torch.float64)
    rounded = evaluate_gradients(call, call.call.q.dtype)
    for name, given, right, near in zip(Gradients._fields, gradients, exact, rounded, strict=True):
        assert (given is None) == (right is None), name
        if given is None or right is None or near is None:
            continue
        step = torch.finfo(call.call.q.dtype).eps * right.abs().max()
        allowed = 2 * _largest(near.double() - right) + step
        error = _largest(given.double() - right)
        assert error <= allowed, f"{name}: the error is {error:.2e}, allowed is {allowed:.2e}"


def _largest(values: Tensor) -> Tensor:
    return values.abs().max() if values.numel() else values.new_zeros(())


def emulated_backward(
    call: BackwardCall,
    config: KernelConfig | None = None,
    *,
    arch: str = "sm_80",
    schedule: str = "lockstep",
) -> BackwardEmulation:
    """A backward pass in the emulator, where nothing may be found; by default with the config that
    the heuristic chooses."""
    plan = BackwardPlan(call, config, ARCHES[arch])
    result = emulate_backward_plan(plan, call, Settings(schedule))
    assert list(map(str, result.findings)) == []
    return result
