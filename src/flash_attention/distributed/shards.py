# SPDX-License-Identifier: Apache-2.0
"""Take a rank's rows out of a tensor, and put the rows of all ranks together again."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from flash_attention.distributed.layout import Circle, circles, rank_in
from flash_attention.distributed.plan import Plan
from flash_attention.distributed.spans import Spans, count_rows, cut, held
from flash_attention.distributed.transport import Exchange, connect
from flash_attention.errors import UnsupportedError


def shard(tensor: Tensor, plan: Plan, mesh: DeviceMesh, dim: int = 1) -> Tensor:
    """Return the rows of this rank, a copy. It is differentiable.

    - `tensor`: a tensor of the whole sequence, such as tokens, labels or q.
    - `plan`: which rows each rank of the mesh holds.
    - `dim`: the dimension of the sequence: 1 after a batch, 0 of packed documents.
    """
    if tensor.shape[dim] != plan.total:
        raise UnsupportedError(
            f"dimension {dim} of the tensor has {tensor.shape[dim]} rows, the plan has"
            f" {plan.total}; pass the dimension of the sequence as dim"
        )
    parts = [tensor.narrow(dim, start, end - start) for start, end in _pieces(plan, mesh)]
    return torch.cat(parts or [tensor.narrow(dim, 0, 0)], dim)


def unshard(tensor: Tensor, plan: Plan, mesh: DeviceMesh, dim: int = 1) -> Tensor:
    """Return the tensor of the whole sequence on every rank, given the rows of each. It is not
    differentiable: a loss is computed from the rows of a rank.

    The arguments are those of `shard`, but for `tensor`, which `shard` or a model returned.
    """
    own = count_rows(_pieces(plan, mesh))
    if tensor.shape[dim] != own:
        raise UnsupportedError(
            f"dimension {dim} of the tensor has {tensor.shape[dim]} rows, this rank has {own} by"
            " the plan; pass the dimension of the sequence as dim"
        )
    blocks = {rank_in(mesh): tensor.detach().movedim(dim, 0).contiguous()}
    for circle in circles(mesh):
        connect(circle.group, tensor.device)
        blocks = _spread(circle, blocks, plan)
    whole = tensor.new_empty((plan.total, *next(iter(blocks.values())).shape[1:]))
    for rank, block in blocks.items():
        for (start, end), at in held(plan.pieces[rank]):
            whole[start:end] = block[at.start : at.end]
    return whole.movedim(0, dim)


def _spread(circle: Circle, blocks: dict[int, Tensor], plan: Plan) -> dict[int, Tensor]:
    """Give the blocks of this rank to the others of a group, and get theirs."""
    own = torch.cat([blocks[rank] for rank in circle.members[circle.rank]])
    width = own.shape[1:].numel()
    rows = [[plan.rows[rank] for rank in ranks] for ranks in circle.members]
    others = [place for place in range(len(rows)) if place != circle.rank]
    sent = {place: own.flatten() for place in others if own.numel()}
    awaited = {place: sum(rows[place]) * width for place in others if sum(rows[place]) * width}
    arrived = Exchange(circle.group, sent, awaited, like=own).wait() | {circle.rank: own}
    found: dict[int, Tensor] = {}
    for place, ranks in enumerate(circle.members):
        flat = arrived.get(place, own.new_empty(0))
        parts = flat.reshape(sum(rows[place]), *own.shape[1:]).split(rows[place])
        found |= dict(zip(ranks, parts, strict=True))
    return found


def position_ids(plan: Plan, mesh: DeviceMesh, device: torch.device | str = "cpu") -> Tensor:
    """Return the position of each row of this rank in its document, int64, for rotary embeddings
    and the like."""
    parts = [
        torch.arange(*piece.span, device=device) - plan.documents[number]
        for number, piece in cut(_pieces(plan, mesh), plan.documents)
    ]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=device)


def _pieces(plan: Plan, mesh: DeviceMesh) -> Spans:
    if plan.ranks != mesh.size():
        raise UnsupportedError(
            f"the plan is for {plan.ranks} ranks, the mesh has {mesh.size()}; make the plan with"
            " mesh.size()"
        )
    return plan.pieces[rank_in(mesh)]
