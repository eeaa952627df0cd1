# SPDX-License-Identifier: Apache-2.0
"""Small calls whose gradients are computed, and what the backward pass is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import autograd
from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.launch.compute import compute_gradients
from flash_attention.launch.plans import known_plan
from flash_attention.reference.judge import generate_qkv


def leaves(*tensors: Tensor | None) -> list[Tensor]:
    """Copies that require grad, of the tensors that are there."""
    return [t.detach().clone().requires_grad_() for t in tensors if t is not None]


def dense(device: str = "cpu", dtype: torch.dtype = torch.bfloat16, d_v: int = 16) -> list[Tensor]:
    """Leaves q, k and v with grouped heads."""
    shape: dict[str, Any] = {"seq_len_k": 20, "n_heads_k": 2, "d_v": d_v}
    return leaves(*generate_qkv(2, 12, 4, 16, dtype, device, **shape))


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BackwardCall]]:
    """The backward calls that are computed in the block."""
    seen: list[BackwardCall] = []

    def of_forward_calls(call: Any, *asked: Any, **how: Any) -> Any:
        return None if isinstance(call, BackwardCall) else known_plan(call, *asked, **how)

    def record(call: BackwardCall, config: Any = None) -> Gradients:
        seen.append(call)
        return compute_gradients(call, config)

    with monkeypatch.context() as patch:
        patch.setattr(autograd, "compute_gradients", record)
        patch.setattr(autograd, "known_plan", of_forward_calls)
        yield seen
