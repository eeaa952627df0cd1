# SPDX-License-Identifier: Apache-2.0
"""Distributed attention beside its simulation, on the ranks that torchrun starts.

    torchrun --nproc-per-node 2 benchmarks/distributed.py [--length 2048] [--json FILE]

Every rank has a GPU of its own, or a core. What one rank computes alone and what an exchange takes
is measured first; the simulator then says how long each schedule takes, and each one is timed.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import flash_attention
from flash_attention.distributed import Link, Machine, attention, make_plan
from flash_attention.distributed.cost.simulator import (
    BACKWARD,
    FORWARD,
    MERGED_BYTES,
    PRODUCTS,
    simulate_schedule,
)
from flash_attention.distributed.cost.work import Shape, ring_work
from flash_attention.distributed.mask import Mask
from flash_attention.distributed.transport import Exchange
from flash_attention.files import write_record

HEADS, HEADS_K, D = 8, 4, 64
REPEATS = 7


def seconds(call: Callable[[], object], device: str) -> float:
    """The least time of a call on the slowest rank, after one that is not counted."""
    times = []
    for _ in range(REPEATS + 1):
        dist.barrier()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times.append(float(slowest))
    return min(times[1:])


def tensors(rows: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    def draw(heads: int) -> Tensor:
        drawn = torch.randn(1, rows, heads, D, device=device, dtype=dtype)
        return drawn.requires_grad_()

    return draw(HEADS), draw(HEADS_K), draw(HEADS_K)


def rate(rows: int, pass_: str, device: str, dtype: torch.dtype) -> float:
    """TFLOP/s of one rank, while the others compute the same."""
    q, k, v = tensors(rows, device, dtype)
    out, _ = flash_attention.attention(q, k, v, return_lse=True)

    def forward() -> object:
        with torch.no_grad():
            return flash_attention.attention(q, k, v, return_lse=True)

    def backward() -> object:
        return torch.autograd.grad(out, (q, k, v), out, retain_graph=True)

    flop = 4 * HEADS * D * rows * rows * PRODUCTS[pass_]
    return flop / seconds(forward if pass_ == FORWARD else backward, device) * 1e-12


def link(mesh: DeviceMesh, device: str) -> Link:
    """Latency and bandwidth of an exchange between neighbours in the ring."""
    group, rank, ranks = mesh.get_group(0), mesh.get_local_rank(0), mesh.size()

    def exchange(size: int) -> float:
        data = torch.ones(size, dtype=torch.uint8, device=device)
        sent, awaited = {(rank + 1) % ranks: data}, {(rank - 1) % ranks: size}
        return seconds(lambda: Exchange(group, sent, awaited, like=data).wait(), device)

    small, large = exchange(8), exchange(1 << 22)
    return Link((1 << 22) / max(large - small, 1e-9) * 1e-9, small * 1e6, gap_us=small * 1e6)


def machine(mesh: DeviceMesh, rows: int, device: str, dtype: torch.dtype) -> Machine:
    """What was measured here, as the simulator takes it."""
    rates = {
        pass_: {str(D): {"full": [[n, rate(n, pass_, device, dtype)] for n in (rows // 2, rows)]}}
        for pass_ in (FORWARD, BACKWARD)
    }
    part = torch.ones(1, rows, HEADS, D, device=device)
    lse = torch.ones(1, HEADS, rows, device=device)
    merging = seconds(lambda: flash_attention.merge(part, lse, part.to(dtype), lse), device)
    speed = part.numel() * MERGED_BYTES / merging * 1e-12
    between = link(mesh, device)
    return Machine("here", between, between, mesh.size(), speed, rates)


def measure(mesh: DeviceMesh, length: int, device: str, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Every schedule: the time that was simulated, and the time that it takes."""
    plan = make_plan(length, mesh.size())
    here = machine(mesh, length // mesh.size(), device, dtype)
    shape = Shape(HEADS, HEADS_K, D, D, itemsize=dtype.itemsize)
    q, k, v = tensors(plan.rows[mesh.get_local_rank(0)], device, dtype)
    rows = []
    for schedule, exchanging in (("ring", 1), ("all-gather", 1), ("heads", mesh.size())):

        def forward(schedule: str = schedule) -> Tensor:
            return attention(q, k, v, mesh, plan=plan, schedule=schedule, check_ranks=False)

        def backward(out: Tensor = forward()) -> object:  # noqa: B008
            return torch.autograd.grad(out, (q, k, v), out, retain_graph=True)

        for pass_, call in ((FORWARD, forward), (BACKWARD, backward)):
            said = simulate_schedule(
                here, plan, Mask(), shape, schedule, exchanging, pass_, ring_work
            )
            row = {"schedule": schedule, "pass": pass_, "simulated_ms": 1e3 * said.seconds}
            rows.append(row | {"measured_ms": 1e3 * seconds(call, device)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Distributed attention beside its simulation.")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    on_gpus = torch.cuda.device_count() >= ranks
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    device, dtype = ("cuda", torch.bfloat16) if on_gpus else ("cpu", torch.float32)
    rows = measure(init_device_mesh(device, (ranks,)), given.length, device, dtype)
    dist.destroy_process_group()
    if rank:
        return
    for row in rows:
        print("  ".join(f"{v:9.1f}" if isinstance(v, float) else f"{v:10}" for v in row.values()))
    if given.json is not None:
        name = torch.cuda.get_device_name() if on_gpus else f"{platform.machine()} CPU"
        record = {
            "device": name,
            "torch": torch.__version__,
            "date": date.today().isoformat(),
            "ranks": ranks,
            "length": given.length,
            "heads": [HEADS, HEADS_K, D],
            "rows": rows,
        }
        write_record(given.json, record)


if __name__ == "__main__":
    main()
