# SPDX-License-Identifier: Apache-2.0
"""Time the kernels of a plan on their stream, without any time of the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch

from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.call.call import Call
from flash_attention.errors import UnsupportedError
from flash_attention.launch.device import CPU
from flash_attention.launch.plan import Plan
from flash_attention.launch.preparation import Outputs

SPIN_CYCLES = 400_000  # about 0.2 ms, longer than the host needs to queue events and kernels


@overload
def run_timed(plan: Plan, call: Call) -> tuple[Outputs, float]: ...


@overload
def run_timed(plan: Plan, call: BackwardCall) -> tuple[Gradients, float]: ...


def run_timed(plan: Plan, call: Call | BackwardCall) -> tuple[Any, float]:
    """Run a call and time it. Returns its result and the milliseconds.

    The kernels run once before, because the first launch loads their code onto the device. The GPU
    spins until both events and the kernels between them are queued, so that it never waits for the
    host.
    """
    is_backward = isinstance(call, BackwardCall)
    _check_on_gpu(plan.device_index, "backward" if is_backward else "forward or emulate")
    arguments, result = plan.prepare(call)
    return result, _milliseconds(lambda: plan.launch(call, arguments, result), plan.device_index)


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
