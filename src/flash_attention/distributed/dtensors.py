# SPDX-License-Identifier: Apache-2.0
"""DTensors that are sharded along the sequence: their rows here, and their plan."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from flash_attention.distributed.plan import Plan, make_plan
from flash_attention.distributed.spans import joined
from flash_attention.errors import UnsupportedError


def local_rows(name: str, tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """The rows of a tensor that are here, with a batch dimension."""
    if isinstance(tensor, DTensor):
        dim = tensor.ndim - 3
        if tensor.device_mesh != mesh or any(p != Shard(dim) for p in tensor.placements):
            raise UnsupportedError(
                f"{name} is a DTensor with placements {tensor.placements} on"
                f" {tensor.device_mesh}; pass one with Shard({dim}), of the sequence, in every"
                " dimension of the mesh that attention gets"
            )
        tensor = tensor.to_local()
    if not isinstance(tensor, Tensor) or tensor.ndim not in (3, 4):
        given = type(tensor).__name__ if not isinstance(tensor, Tensor) else tuple(tensor.shape)
        raise UnsupportedError(
            f"{name} is {given}; pass this rank's rows, a torch.Tensor (batch, rows, heads, d), or"
            " packed (rows, heads, d)"
        )
    return tensor[None] if tensor.ndim == 3 else tensor


def plan_of(tensor: Tensor, mesh: DeviceMesh) -> Plan:
    """The plan of a tensor that came without one: its rows are in order, as DTensor places them,
    and equally many on each rank of plain tensors."""
    shape = tuple(mesh.mesh.shape)
    rows = tensor.shape[-3] if tensor.ndim >= 3 else 0
    return _in_order(rows if isinstance(tensor, DTensor) else rows * mesh.size(), shape)


@lru_cache(maxsize=64)
def _in_order(total: int, shape: tuple[int, ...]) -> Plan:
    plan = make_plan(total, shape[0], placement="contiguous")
    for ranks in shape[1:]:
        parts = []
        for spans in plan.pieces:
            start = spans[0].start if spans else 0
            inside = make_plan(sum(s.rows for s in spans), ranks, placement="contiguous")
            parts += [joined(span.moved(start) for span in piece) for piece in inside.pieces]
        plan = Plan(plan.documents, tuple(parts))
    return plan


def wrapped(tensor: Tensor, like: DTensor, rows_dim: int, rows: int) -> DTensor:
    """A DTensor of this rank's part of a result, on the mesh of `like`, with `rows` in all."""
    dim = rows_dim % tensor.ndim
    shape = torch.Size((*tensor.shape[:dim], rows, *tensor.shape[dim + 1 :]))
    strides = torch.empty(shape, device="meta").stride()
    placements = [Shard(dim)] * like.device_mesh.ndim
    return DTensor.from_local(
        *(tensor, like.device_mesh, placements), run_check=False, shape=shape, stride=strides
    )
