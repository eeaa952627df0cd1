# SPDX-License-Identifier: Apache-2.0
"""The schedules by name, and the choice between them."""

from __future__ import annotations

from functools import lru_cache

from torch.distributed.device_mesh import DeviceMesh

from flash_attention.call.call import Call
from flash_attention.distributed.cost.machine import h200
from flash_attention.distributed.cost.simulator import FORWARD, simulate_schedule
from flash_attention.distributed.cost.work import Shape, even_work
from flash_attention.distributed.heads import divides
from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import Plan
from flash_attention.distributed.rounds import ALL_GATHER, HEADS, RING
from flash_attention.errors import UnsupportedError, quoted

AUTO = "auto"
SCHEDULES = (AUTO, RING, ALL_GATHER, HEADS)


def check_schedule(schedule: object, mesh: DeviceMesh) -> None:
    """Check that a schedule is one, and fits a mesh."""
    if schedule not in SCHEDULES:
        raise UnsupportedError(
            f"schedule is {quoted(schedule)}; allowed are {', '.join(map(repr, SCHEDULES))}"
        )
    if schedule == HEADS and mesh.ndim == 2:
        raise UnsupportedError(
            "schedule is 'heads', and mesh has 2 dimensions; heads are exchanged along the second"
            " anyway: pass 'ring' or 'all-gather' for the first, or a mesh of 1 dimension"
        )


def choose(call: Call, plan: Plan, mask: Mask, mesh_shape: tuple[int, ...]) -> str:
    """The schedule that the model of costs finds fastest. It is the same on all ranks."""
    q, v = call.q, call.v
    shape = Shape(*(q.shape[2], v.shape[2], q.shape[3], v.shape[3]), q.shape[0], q.itemsize)
    return _fastest(plan, mask, shape, mesh_shape)


@lru_cache(maxsize=64)
def _fastest(plan: Plan, mask: Mask, shape: Shape, mesh_shape: tuple[int, ...]) -> str:
    exchanging = mesh_shape[1] if len(mesh_shape) == 2 else 1
    possible = [(RING, exchanging), (ALL_GATHER, exchanging)]
    if len(mesh_shape) == 1 and divides(shape.heads, shape.heads_k, plan.ranks):
        possible.append((HEADS, plan.ranks))
    found = [
        simulate_schedule(h200(), plan, mask, shape, schedule, many, FORWARD, even_work)
        for schedule, many in possible
    ]
    return min(found, key=lambda estimate: estimate.seconds).schedule
