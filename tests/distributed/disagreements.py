# SPDX-License-Identifier: Apache-2.0
"""Calls in which ranks differ: what each of them is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from flash_attention import UnsupportedError, masks, scores
from flash_attention.distributed import attention, make_plan

LENGTH, HEADS = 24, 6
PLAN = make_plan(LENGTH, 3, causal=True)
OTHER_PLAN = make_plan(LENGTH, 3, placement="contiguous")


def rows(count: int = LENGTH // 3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(1, count, HEADS, 8, dtype=dtype)


def agreed(mesh: DeviceMesh, **changed: Any) -> Any:
    """A call that is right, but for what is changed."""
    given: dict[str, Any] = {"q": rows(), "plan": PLAN, "causal": True, "schedule": "ring"}
    given |= changed
    q = given.pop("q")
    return attention(q, q, q, mesh, **given)


CHANGES: dict[str, Callable[[], dict[str, Any]]] = {
    "dtype": lambda: {"q": rows(dtype=torch.bfloat16)},
    "plan": lambda: {"plan": OTHER_PLAN},
    "schedule": lambda: {"schedule": "all-gather"},
    "mask": lambda: {"causal": False},
    "softcap": lambda: {"softcap": 2.0},
    "function": lambda: {"mask": masks.causal(3)},
    "gradients": lambda: {"q": rows().requires_grad_()},
    "rows": lambda: {"q": rows(5)},
    "shape": lambda: {"q": torch.ones(1, 8, 5, 8)},
}


def run(rank: int, ranks: int) -> dict[str, str]:
    """Have rank 1 change something, then all of them. Returns what this rank was told."""
    mesh, told = init_device_mesh("cpu", (ranks,)), {}
    for name, change in CHANGES.items():
        try:
            agreed(mesh, **(change() if rank == 1 else {}))
        except UnsupportedError as error:
            told[name] = str(error)
    wrong: dict[str, dict[str, Any]] = {
        "heads": {"q": torch.ones(1, 8, 4, 8), "schedule": "heads"},
        "unknown schedule": {"schedule": "fastest"},
        "plan of other ranks": {"plan": make_plan(LENGTH, 4)},
        "captured": {"score": scores.alibi(torch.ones(HEADS, requires_grad=True))},
    }
    for name, changed in wrong.items():
        try:
            agreed(mesh, **changed)
        except UnsupportedError as error:
            told[name] = str(error)
    told["afterwards"] = str(tuple(agreed(mesh).shape))
    return told
