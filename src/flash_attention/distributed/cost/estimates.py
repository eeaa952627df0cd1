# SPDX-License-Identifier: Apache-2.0
"""simulate: all schedules for a sequence on some GPUs, the fastest first."""

from __future__ import annotations

from functools import cache
from numbers import Integral

from flash_attention.call.call import Window
from flash_attention.distributed.cost.machine import Machine, h200
from flash_attention.distributed.cost.simulator import (
    BACKWARD,
    FORWARD,
    Estimate,
    simulate_schedule,
    ways,
)
from flash_attention.distributed.cost.work import Shape, ring_work
from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import make_plan
from flash_attention.errors import UnsupportedError, quoted


def simulate(
    length: int,
    gpus: int,
    *,
    heads: int,
    heads_k: int | None = None,
    d: int = 128,
    batch: int = 1,
    causal: bool = True,
    window: Window | None = None,
    backward: bool = False,
    machine: Machine | None = None,
) -> list[Estimate]:
    """Simulate every schedule of `attention` over one sequence in 16 bits, without running any.

    - `length`, `gpus`: the rows of the sequence, and the GPUs that it is divided among.
    - `heads`, `heads_k`, `d`, `batch`, `causal`, `window`: as in `attention`.
    - `backward`: simulate the backward pass instead of the forward pass.
    - `machine`: the GPUs and their links, by default H200s in nodes of 8, `h200()`. Kernels take
      the times that were measured on one; the links are assumptions.

    Returns the estimates, the fastest first.
    """
    heads_k = heads if heads_k is None else heads_k
    given = {"heads": heads, "heads_k": heads_k, "d": d, "batch": batch, "length": length}
    for name, number in given.items():
        if not isinstance(number, Integral) or isinstance(number, bool) or number < 1:
            raise UnsupportedError(f"{name} is {quoted(number)}; pass a positive int")
    if heads % heads_k:
        raise UnsupportedError(
            f"heads is {heads}, heads_k {heads_k}; heads must be a multiple of heads_k"
        )
    machine = machine or h200()
    plan = make_plan(length, gpus, causal=causal, window=window)
    mask, shape = Mask.of(causal, window), Shape(heads, heads_k, d, d, batch)
    pass_ = BACKWARD if backward else FORWARD
    rounds = cache(lambda plan, mask: list(ring_work(plan, mask)))  # which schedules share
    found = [
        simulate_schedule(machine, plan, mask, shape, schedule, exchanging, pass_, rounds)
        for schedule, exchanging in ways(plan, shape, machine.node)
    ]
    return sorted(found, key=lambda estimate: estimate.seconds)
