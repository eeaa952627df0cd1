# SPDX-License-Identifier: Apache-2.0
"""Time the kernels of a plan on their stream, without any time of the host."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.call.call import Call
from flash_attention.errors import UnsupportedError
from flash_attention.launch.backward import BackwardPlan
from flash_attention.launch.device import CPU
from flash_attention.launch.plan import Plan, fill_idle

SPIN_CYCLES = 400_000  # about 0.2 ms, longer than the host needs to queue events and kernels


def run_timed(plan: Plan, call: Call) -> tuple[Tensor, Tensor | None, float]:
    """Run a call and time it. Returns the output, the lse or None, and the milliseconds.

    The kernels run once before, because the first launch loads their code onto the device. The GPU
    spins until both events and the kernels between them are queued, so that it never waits for the
    host.
    """
    _check_on_gpu(plan.device_index, "forward or emulate")
    arguments, out, lse = plan.prepare(call)

    def run() -> None:
        if plan.idle:
            fill_idle(out, lse, call.sinks)
        else:
            plan.launcher.launch(arguments)

    return out, lse, _milliseconds(run, plan.device_index)


def run_backward_timed(plan: BackwardPlan, call: BackwardCall) -> tuple[Gradients, float]:
    """Run a backward pass as `run_timed` runs a call. Returns the gradients and milliseconds."""
    _check_on_gpu(plan.device_index, "backward")
    if plan.idle:
        gradients = plan.run(call)
        return gradients, _milliseconds(lambda: None, plan.device_index)
    arguments, gradients = plan.prepare(call)
    return gradients, _milliseconds(lambda: plan.launcher.launch(arguments), plan.device_index)


def _check_on_gpu(device_index: int, instead: str) -> None:
    if device_index == CPU:
        raise UnsupportedError(
            "q, k and v are on cpu, where the kernel is emulated: there is no kernel time to tell;"
            f' pass CUDA tensors, q.to("cuda"), or call {instead}'
        )


def _milliseconds(run: Callable[[], None], device_index: int) -> float:
    """Time what `run` queues, after it ran once."""
    with torch.cuda.device(device_index):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        run()
        torch.cuda._sleep(SPIN_CYCLES)
        start.record()
        run()
        end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds
