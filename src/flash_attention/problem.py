# SPDX-License-Identifier: Apache-2.0
"""What the caller asked (`Problem`) and the shape of the launch that answers it (`Geometry`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from flash_attention.kernel_configs import FlashForwardKernelConfig


class ShapedTensor(Protocol):
    """Anything with a shape and an element type: a tensor or a description of one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...


@dataclass(frozen=True)
class Problem:
    """One attention call: its shapes, element type and scale. No tuning in it."""

    batch: int
    seq_q: int
    seq_k: int
    heads: int
    d_head: int
    dtype: torch.dtype
    softmax_scale: float

    @classmethod
    def from_tensors(cls, q: ShapedTensor, k: ShapedTensor) -> Problem:
        """The problem of (batch, seq, heads, d_head) tensors, scaled by 1 / sqrt(d_head)."""
        batch, seq_q, heads, d_head = q.shape
        return cls(batch, seq_q, k.shape[1], heads, d_head, q.dtype, d_head**-0.5)


@dataclass(frozen=True)
class Geometry:
    """Grid (q blocks, heads, batch), threads of a block, bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: int
    smem_bytes: int

    @classmethod
    def of(cls, config: FlashForwardKernelConfig, problem: Problem) -> Geometry:
        """One block of threads for each B_r queries of each head of each batch entry."""
        q_blocks = -(-problem.seq_q // config.B_r)
        return cls(
            (q_blocks, problem.heads, problem.batch), config.num_threads, config.smem_bytes()
        )
