# SPDX-License-Identifier: Apache-2.0
"""The agents of a CTA that read shared memory."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ptx_emulator.machine.access import Ints
from ptx_emulator.machine.launch.clocks import WARPS_PER_GROUP, Clocks

MOST_KEPT = 64


class Readers(NamedTuple):
    """Warps, their single lanes, the tensor cores of warpgroups and the engines of bulk stores."""

    first: Ints  # the agent of each, or the first of those that read as one
    agents: Ints  # how many read as one: the tensor cores of the four warps of a warpgroup do
    of_agent: Ints
    wgmma: slice

    @classmethod
    def of(cls, clocks: Clocks) -> Readers:
        """Those of a launch, which all launches with as many agents have."""
        places = (clocks.lane_agent(0), clocks.wgmma_agent(0), clocks.bulk_agent(0))
        return _readers(clocks.warps_per_cta, clocks.groups_per_cta, *places, clocks.num_agents)


@lru_cache(maxsize=MOST_KEPT)
def _readers(warps: int, groups: int, lanes: int, wgmma: int, bulk: int, agents: int) -> Readers:
    numbers = np.arange(warps)
    of_groups = wgmma + WARPS_PER_GROUP * np.arange(groups)
    engines = [of_groups, bulk + numbers] if wgmma < agents else []
    first = np.concatenate((numbers, lanes + numbers, *engines))
    tensor_cores = slice(2 * warps, 2 * warps + groups)
    several = np.ones(len(first), np.int64)
    several[tensor_cores] = WARPS_PER_GROUP
    of_agent = np.zeros(agents, np.int64)
    of_agent[first] = np.arange(len(first))
    return Readers(first, several, of_agent, tensor_cores)
