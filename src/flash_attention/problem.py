# SPDX-License-Identifier: Apache-2.0
"""What the caller asked (`Problem`) and the shape of the launch that answers it (`Geometry`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from flash_attention.kernel_configs import HopperForwardKernelConfig, KernelConfig, TileOrder


class ShapedTensor(Protocol):
    """Anything with a shape and an element type: a tensor or a description of one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...


@dataclass(frozen=True)
class Problem:
    """One attention call: its shapes, element type, mask and scale. No tuning in it.

    A causal mask ends at the last key: query i sees the keys j <= i + seq_k - seq_q.
    """

    batch: int
    seq_q: int
    seq_k: int
    heads: int
    heads_k: int  # of k and of v; heads is a multiple
    d_head: int
    dtype: torch.dtype
    softmax_scale: float
    causal: bool = False

    @classmethod
    def from_tensors(
        cls,
        q: ShapedTensor,
        k: ShapedTensor,
        causal: bool = False,
        softmax_scale: float | None = None,
    ) -> Problem:
        """The problem of (batch, seq, heads, d_head) tensors; the scale is 1 / sqrt(d_head)."""
        batch, seq_q, heads, d_head = q.shape
        _, seq_k, heads_k, _ = k.shape
        scale = d_head**-0.5 if softmax_scale is None else softmax_scale
        return cls(batch, seq_q, seq_k, heads, heads_k, d_head, q.dtype, scale, causal)

    @property
    def heads_per_kv(self) -> int:
        """Heads of q that share one head of k and v."""
        return self.heads // self.heads_k if self.heads_k else 1

    @property
    def idle(self) -> bool:
        """Whether there is nothing for a kernel to do: no output, or no key to see."""
        return 0 in (self.batch, self.seq_q, self.seq_k, self.heads)


@dataclass(frozen=True)
class Geometry:
    """The grid, threads of a block, bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: int
    smem_bytes: int

    @classmethod
    def of(cls, config: KernelConfig, problem: Problem, num_sms: int) -> Geometry:
        """The launch of a kernel on a device with so many multiprocessors.

        The first family's grid is (query blocks, heads, batch). The Hopper family's is flat, and
        has no more blocks of threads than fit on the device where each takes several tiles.
        """
        q_blocks = -(-problem.seq_q // config.B_r)
        grid = (q_blocks, problem.heads, problem.batch)
        if isinstance(config, HopperForwardKernelConfig):
            tiles = q_blocks * problem.heads * problem.batch
            resident = tiles if config.tile_order == TileOrder.ONE_EACH else num_sms
            grid = (min(tiles, resident), 1, 1)
        return cls(grid, config.num_threads, config.smem_bytes())
