# SPDX-License-Identifier: Apache-2.0
"""Backward kernels on CPU tensors: the emulator runs the PTX that would run on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.call.tensors import TensorView
from flash_attention.compile import CompiledKernel
from flash_attention.compile.unit import Unit
from flash_attention.errors import LaunchError
from flash_attention.launch.backward import BackwardPlan
from flash_attention.launch.emulation import (
    MEMORY_SLACK,
    Settings,
    allocate_rest,
    check_size,
    compiled_unit,
    elements,
    listed,
    run_steps,
    span,
    storage,
)
from flash_attention.launch.programs import program_of
from ptx_emulator import Counters, Finding, GlobalMemory


@dataclass(frozen=True)
class BackwardEmulation:
    """The result of an emulated backward pass."""

    gradients: Gradients
    findings: tuple[Finding, ...]  # the errors that were found; empty if there are none
    counters: tuple[Counters, ...]  # of each kernel
    seconds: float  # of the emulation, without compiling and loading


def emulate_checked(plan: BackwardPlan, call: BackwardCall) -> Gradients:
    """Emulate a plan with all checks. A finding raises LaunchError."""
    emulation = emulate_backward_plan(plan, call, Settings())
    if emulation.findings:
        raise LaunchError(
            f"the emulator found {len(emulation.findings)} errors in"
            f" {plan.config.short_form()}:\n{listed(emulation.findings)}"
        )
    return emulation.gradients


def emulate_backward_plan(
    plan: BackwardPlan,
    call: BackwardCall,
    settings: Settings,
    *,
    compile_unit: Callable[[Unit], CompiledKernel] | None = None,
) -> BackwardEmulation:
    """Run the kernels of a plan on copies of the call's tensors in the emulator's memory.

    Tests that plant a mistake replace `compile_unit`.
    """
    arguments = plan.bind(call)
    compile_unit = compile_unit or compiled_unit
    steps = plan.recipe.steps
    programs = [program_of(compile_unit(step.unit)) for step in steps]
    for step in steps:
        check_size(step)
    memory = GlobalMemory(_bytes_needed(plan, call) + MEMORY_SLACK)
    _allocate(plan, memory, arguments, call)
    start = time.perf_counter()
    results = run_steps(steps, programs, memory, arguments, settings, plan.config.short_form())
    seconds = time.perf_counter() - start
    wanted = plan.problem.wanted
    dq, dk, dv = (
        _read(plan, memory, getattr(arguments, view.name), view) if asked else None
        for view, asked in zip(plan.views[5:], wanted[:3], strict=True)
    )
    dsinks = None
    if wanted.dsinks:
        values = memory.read(arguments.dsinks, np.float32, (plan.problem.heads,))
        dsinks = torch.from_numpy(values)
    return BackwardEmulation(
        Gradients(dq, dk, dv, dsinks),
        tuple(finding for result in results for finding in result.findings),
        tuple(result.counters for result in results),
        seconds,
    )


def _read(plan: BackwardPlan, memory: GlobalMemory, address: int, view: TensorView) -> Tensor:
    stored = torch.from_numpy(memory.read(address, np.uint8, (view.layout.span,)))
    tensor = stored.view(view.dtype).as_strided(view.shape, view.strides)
    return tensor[0] if plan.is_packed(view) else tensor


def _bytes_needed(plan: BackwardPlan, call: BackwardCall) -> int:
    tensors = sum(view.layout.span for view in plan.views)
    given = sum(span(t) * t.itemsize for t in call.call.extras().values())
    scratch = sum(plan.recipe.scratch.values())
    rows = prod(plan.problem.lse_shape)
    return tensors + given + scratch + 4 * (2 * rows + plan.problem.heads)


def _allocate(plan: BackwardPlan, memory: GlobalMemory, arguments: Any, call: BackwardCall) -> None:
    """Copy the inputs to the emulator's memory, allocate the gradients, and store all addresses."""
    forward = call.call
    inputs = (call.do, *forward[:4])
    for tensor, view, name in zip(inputs, plan.views, ("d_o", *"qkvo"), strict=False):
        if tensor is not None:
            address = memory.alloc(storage(tensor), name=name, owned=elements(view))
            setattr(arguments, name, address)
    for view, asked in zip(plan.views[5:], plan.problem.wanted[:3], strict=True):
        if asked:
            address = memory.alloc(nbytes=view.layout.span, name=view.name)
            setattr(arguments, view.name, address)
    for name, rows in (("lse", call.lse), ("dlse", call.dlse)):
        if rows is not None:
            setattr(arguments, name, memory.alloc(rows.detach().numpy(), name=name))
    if plan.problem.wanted.dsinks:
        arguments.dsinks = memory.alloc(nbytes=4 * plan.problem.heads, name="dsinks")
    allocate_rest(plan.recipe, memory, arguments, forward)
