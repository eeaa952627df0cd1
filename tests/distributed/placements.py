# SPDX-License-Identifier: Apache-2.0
"""shard, unshard and position ids, and how many bytes schedules send, on ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import P2POp
from torch.distributed.device_mesh import init_device_mesh

from flash_attention.distributed import attention, make_plan, position_ids, shard, unshard
from flash_attention.distributed.cost.machine import h200
from flash_attention.distributed.cost.simulator import BACKWARD, FORWARD, simulate_schedule
from flash_attention.distributed.cost.work import Shape, ring_work
from flash_attention.distributed.mask import Mask

LENGTHS = (5, 11, 1, 20)


def placed(rank: int, ranks: int) -> str:
    """Rows go to their ranks and come back."""
    for shape in [(ranks,), (ranks // 2, 2)]:
        mesh = init_device_mesh("cpu", shape)
        plan = make_plan(LENGTHS, ranks, causal=True)
        whole = torch.randn(2, sum(LENGTHS), 3, generator=torch.Generator().manual_seed(0))
        whole.requires_grad_()
        mine = shard(whole, plan, mesh)
        indices = [row for span in plan.pieces[rank] for row in range(*span)]
        assert torch.equal(mine, whole[:, indices])
        assert torch.equal(unshard(mine, plan, mesh), whole)
        assert torch.equal(unshard(mine.movedim(1, 2), plan, mesh, 2), whole.movedim(1, 2))
        (gradient,) = torch.autograd.grad(mine.sum(), whole)
        assert gradient.sum() == mine.numel()
        positions = torch.cat([torch.arange(length) for length in LENGTHS])
        assert torch.equal(position_ids(plan, mesh), positions[indices])
    return ""


def bytes_sent(rank: int, ranks: int) -> dict[str, list[float]]:
    """What each schedule sends, and what the simulator says."""
    sent, found = [0], {}
    post = dist.batch_isend_irecv

    def counting(operations: list[P2POp]) -> list[dist.Work]:
        leaving = (op.tensor for op in operations if op.op is dist.isend)
        sent[0] += sum(tensor.nbytes for tensor in leaving)
        works: list[dist.Work] = post(operations)
        return works

    setattr(dist, "batch_isend_irecv", counting)  # noqa: B010
    rows, shape = 16, Shape(heads=8, heads_k=2, d=8, d_v=8)
    mask, plan = Mask(None, 0), make_plan(ranks * rows, ranks, causal=True)
    tensors = (torch.ones(1, rows, heads, 8, dtype=torch.bfloat16) for heads in (8, 2, 2))
    q, k, v = (tensor.requires_grad_() for tensor in tensors)
    for schedule, mesh_shape, exchanging in (
        ("ring", (ranks,), 1),
        ("all-gather", (ranks,), 1),
        ("heads", (ranks,), ranks),
        ("ring", (ranks // 2, 2), 2),
    ):
        mesh = init_device_mesh("cpu", mesh_shape)
        counts = []
        sent[0] = 0
        out = attention(q, k, v, mesh, plan=plan, causal=True, schedule=schedule)
        counts.append(sent[0])
        sent[0] = 0
        out.sum().backward()
        counts.append(sent[0])
        for pass_, count in zip((FORWARD, BACKWARD), counts, strict=True):
            said = simulate_schedule(
                h200(), plan, mask, shape, schedule, exchanging, pass_, ring_work
            )
            found[f"{schedule} {mesh_shape} {pass_}"] = [count, said.sent_bytes]
    return found
