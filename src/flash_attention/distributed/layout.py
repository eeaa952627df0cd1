# SPDX-License-Identifier: Apache-2.0
"""Where a rank is in a mesh, and which groups it talks to.

Ranks are numbered in the order of the mesh, (0, 0), (0, 1), ..., whatever their global ranks.
"""

from __future__ import annotations

from typing import NamedTuple

from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from flash_attention.errors import UnsupportedError


class Circle(NamedTuple):
    """One dimension of a mesh: the group of a rank along it, and its place there."""

    group: ProcessGroup
    rank: int
    members: tuple[tuple[int, ...], ...]  # of each place, the ranks of the mesh behind it


def check_mesh(mesh: object) -> DeviceMesh:
    """Check that something is a mesh of one or two dimensions."""
    if not isinstance(mesh, DeviceMesh):
        raise UnsupportedError(
            f"mesh is a {type(mesh).__name__}; pass a torch DeviceMesh, as"
            " torch.distributed.init_device_mesh('cuda', (dist.get_world_size(),)) makes"
        )
    if mesh.ndim not in (1, 2):
        raise UnsupportedError(
            f"mesh has {mesh.ndim} dimensions; pass one of 1 dimension, or of 2 to exchange heads"
            " along the second, as mesh['context'] is of a larger mesh"
        )
    return mesh


def rank_in(mesh: DeviceMesh) -> int:
    """The number of this rank in the mesh."""
    number = 0
    for dim in range(check_mesh(mesh).ndim):
        number = number * mesh.size(dim) + mesh.get_local_rank(dim)
    return number


def circles(mesh: DeviceMesh) -> list[Circle]:
    """The dimensions of a mesh, the last one first."""
    sizes = [mesh.size(dim) for dim in range(mesh.ndim)]
    ranks = [mesh.get_local_rank(dim) for dim in range(mesh.ndim)]
    groups = [mesh.get_group(dim) for dim in range(mesh.ndim)]
    if mesh.ndim == 1:
        places = tuple((place,) for place in range(sizes[0]))
        return [Circle(groups[0], ranks[0], places)]
    outer, inner = sizes
    near = tuple((ranks[0] * inner + place,) for place in range(inner))
    far = tuple(tuple(range(place * inner, (place + 1) * inner)) for place in range(outer))
    return [Circle(groups[1], ranks[1], near), Circle(groups[0], ranks[0], far)]
