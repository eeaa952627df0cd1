# SPDX-License-Identifier: Apache-2.0
"""A rank that dies, or hangs, in the middle of a call: what happens to the others."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import flash_attention
from flash_attention.distributed import attention, ring

TIME_OUT = 4.0  # seconds, of the group
LENGTH = 64


def _group(ranks: int) -> DeviceMesh:
    group = dist.new_group(list(range(ranks)), timeout=timedelta(seconds=TIME_OUT))
    return DeviceMesh.from_group(group, "cpu")


def run(rank: int, ranks: int, fault: str, pass_: str) -> dict[str, Any]:
    """Rank 2 stops in its second task. The others say what they raised and after how long."""
    mesh = _group(ranks)
    whole = torch.randn(1, LENGTH, 2, 8, generator=torch.Generator().manual_seed(0))
    q = whole.chunk(ranks, 1)[rank].clone().requires_grad_()
    wanted = flash_attention.attention(whole, whole, whole).chunk(ranks, 1)[rank]
    name = "attend" if pass_ == "forward" else "differentiate"
    function = getattr(ring, name)
    calls: list[None] = []

    def stop(*arguments: Any) -> Any:
        calls.append(None)
        if len(calls) == 2 and fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if len(calls) == 2:
            time.sleep(3 * TIME_OUT)
        return function(*arguments)

    if rank == 2:
        setattr(ring, name, stop)
    out: torch.Tensor | None = None
    started = time.monotonic()
    try:
        out = attention(q, q, q, mesh, schedule="ring")
        out.sum().backward()
    except RuntimeError as error:
        seconds = time.monotonic() - started
        return {
            "raised": str(error),
            "seconds": seconds,
            # A rank that had everything from the one that stopped has a whole result.
            "whole": out is None or torch.allclose(out, wanted, atol=1e-5),
            "gradient": q.grad is not None,
        }
    return {"raised": ""}
