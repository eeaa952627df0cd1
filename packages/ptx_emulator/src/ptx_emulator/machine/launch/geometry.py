# SPDX-License-Identifier: Apache-2.0
"""What all launches of a program over one grid have in common: their lanes and constants."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ptx_emulator.machine.clusters import Clusters, Shape, coordinates
from ptx_emulator.machine.lanes import WARP_SIZE
from ptx_emulator.machine.storage.owners import shared_owners
from ptx_emulator.program.program import Program
from ptx_emulator.types import ENVIRONMENT

ALL_LANES = (1 << WARP_SIZE) - 1
MOST_KEPT = 16  # geometries
LARGEST_KEPT = 1 << 15  # threads of a launch whose geometry is kept
SHARED_GRANULE = 1024  # CTAs' shared memories start at multiples of the widest swizzle atom


class Geometry:
    """The lanes of a launch, what their special registers hold, and arrays of constants.

    Launches share it, so nothing in it changes but what its selections remember of themselves.
    """

    def __init__(
        self, program: Program, grid: Shape, block: Shape, cluster: Shape, dynamic_smem: int
    ) -> None:
        self._grid, self._block = grid, block
        self._dynamic_smem = dynamic_smem
        self.clusters = clusters = Clusters(grid, cluster, prod(block))
        self.num_ctas = clusters.count  # of which each may be a cluster
        self.warps_per_cta = clusters.size * clusters.warps_in_cta
        self.num_warps = self.num_ctas * self.warps_per_cta
        self.shared_limit = program.static_smem + dynamic_smem
        self.shared_stride = -(-self.shared_limit // SHARED_GRANULE) * SHARED_GRANULE
        self.shared_owners = shared_owners(program, self.shared_limit)
        self.lanes = clusters.lanes(self.shared_stride)
        self.special_registers = {
            name: self._of_all(self._special_register(name), np.uint32)
            for name in program.special_registers
            if name not in ENVIRONMENT
        }
        self.constants = [self._of_all(value, value.dtype) for value in program.constant_arrays]

    def _of_all(self, value: Any, dtype: Any) -> Any:
        """A value, or one a lane, as an array that nobody changes."""
        array = np.empty(self.lanes.count, dtype)
        array[:] = value
        array.flags.writeable = False
        return array

    def _special_register(self, name: str) -> Any:
        lanes, clusters = self.lanes, self.clusters
        if name[-2:] in (".x", ".y", ".z"):
            return self._coordinate(name[:-2], "xyz".index(name[-1]))
        if name.startswith("lanemask_"):
            below = (1 << lanes.lane) - 1
            return {
                "eq": below + 1,
                "lt": below,
                "le": 2 * below + 1,
                "gt": ALL_LANES - (2 * below + 1),
                "ge": ALL_LANES - below,
            }[name.removeprefix("lanemask_")]
        return {
            "laneid": lanes.lane,
            "warpid": clusters.warp(lanes.warp),
            "nwarpid": clusters.warps_in_cta,
            "cluster_ctarank": lanes.rank,
            "cluster_nctarank": clusters.size,
            "is_explicit_cluster": clusters.size > 1,
            "nsmid": 1,
            "dynamic_smem_size": self._dynamic_smem,
            "total_smem_size": self.shared_limit,
        }.get(name, 0)

    def _coordinate(self, name: str, axis: int) -> Any:
        """One coordinate of a thread, a CTA or a cluster, or how many of them there are."""
        lanes, clusters = self.lanes, self.clusters
        shapes = {
            "tid": self._block,
            "ctaid": self._grid,
            "clusterid": clusters.in_grid,
            "cluster_ctaid": clusters.shape,
        }
        if name not in shapes:
            return {_count_of(key): shape for key, shape in shapes.items()}[name][axis]
        if name == "tid":
            number = clusters.warp(lanes.warp) * WARP_SIZE + lanes.lane
        elif name == "ctaid":
            number = clusters.cta(lanes.cta, lanes.warp)
        else:
            number = lanes.cta if name == "clusterid" else lanes.rank
        return coordinates(number, shapes[name])[axis]


def _count_of(name: str) -> str:
    """The register that says how many there are of what another one counts."""
    prefix, _, last = name.rpartition("_")
    return f"{prefix}_n{last}" if prefix else f"n{last}"


def geometry_of(
    program: Program, grid: Shape, block: Shape, cluster: Shape, dynamic_smem: int
) -> Geometry:
    """The geometry of a launch; small ones are made once for launches that are alike."""
    make = _kept if prod(grid) * prod(block) <= LARGEST_KEPT else Geometry
    return make(program, grid, block, cluster, dynamic_smem)


_kept = lru_cache(maxsize=MOST_KEPT)(Geometry)
