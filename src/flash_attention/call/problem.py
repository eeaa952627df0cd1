# SPDX-License-Identifier: Apache-2.0
"""What the caller asked (`Problem`) and the shape of the launch that answers it (`Geometry`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from flash_attention.call.call import DEFAULTS, NO_EXTRAS, Extras, Options, Window
from flash_attention.call.features import Features, MaskKind
from flash_attention.families.sm90.forward.config import WARP_ROWS
from flash_attention.families.sm90.forward.splits import Chunks
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

    A query's place ends at the last key: query i of seq_q sits at key i + seq_k - seq_q. With
    `causal` it sees the keys up to its place, with `window` those from window[0] before it to
    window[1] after it; never both are set.
    """

    batch: int
    seq_q: int  # the longest, where entries have lengths of their own
    seq_k: int
    heads: int
    heads_k: int  # of k and of v; heads is a multiple
    d_head: int  # of q and k
    d_v: int
    dtype: torch.dtype
    softmax_scale: float
    causal: bool = False
    window: tuple[int, int] | None = None
    softcap: float = 0.0  # 0: none
    sinks: bool = False
    total_q: int | None = None  # rows of a packed q, None where q has a batch dimension
    total_k: int | None = None
    seqused_k: bool = False
    page_keys: int = 0  # rows of a page, where a table says which pages hold an entry's keys
    pages: int = 0  # of k and of v

    @classmethod
    def from_tensors(
        cls,
        q: ShapedTensor,
        k: ShapedTensor,
        v: ShapedTensor,
        *,
        options: Options = DEFAULTS,
        extras: Extras = NO_EXTRAS,
    ) -> Problem:
        """The problem of (batch, seq, heads, d) tensors, or packed (total, heads, d) ones, or k and
        v in pages.

        The scale is 1 / sqrt(d) of q unless given.
        """
        rows_q, heads, d_head = q.shape[-3:]
        rows_k, heads_k, _ = k.shape[-3:]
        pages = page_keys = 0
        if extras.block_table is not None:
            pages, page_keys = k.shape[:2]
            rows_k = page_keys * extras.block_table.shape[1]
        packed_q, packed_k = extras.cu_seqlens_q is not None, extras.cu_seqlens_k is not None
        batch = q.shape[0] if extras.cu_seqlens_q is None else len(extras.cu_seqlens_q) - 1
        scale = d_head**-0.5 if options.softmax_scale is None else float(options.softmax_scale)
        causal, window = normalised_mask(options.causal, options.window, rows_q, rows_k)
        return cls(
            batch=batch,
            seq_q=int(options.max_seqlen_q or 0) if packed_q else rows_q,
            seq_k=int(options.max_seqlen_k or 0) if packed_k else rows_k,
            heads=heads,
            heads_k=heads_k,
            d_head=d_head,
            d_v=v.shape[-1],
            dtype=q.dtype,
            softmax_scale=scale,
            causal=causal,
            window=window,
            softcap=float(options.softcap),
            sinks=extras.sinks is not None,
            total_q=rows_q if packed_q else None,
            total_k=rows_k if packed_k else None,
            seqused_k=extras.seqused_k is not None,
            page_keys=page_keys,
            pages=pages,
        )

    @property
    def features(self) -> Features:
        """What the kernel's code must be able to do."""
        mask = MaskKind.CAUSAL if self.causal else MaskKind.WINDOW if self.window else MaskKind.FULL
        return Features(
            *(mask, self.softcap > 0, self.per_batch),
            page_keys=self.page_keys,
            sinks=self.sinks,
        )

    def features_for(self, config: KernelConfig, return_lse: bool = False) -> Features:
        """What the code of this config's kernel must be able to do.

        One of the first family looks at no bounds where there are none to see: its blocks divide
        the lengths, all tensors have its columns and as many heads, and no row ends in more than O.
        """
        features = self.features
        if isinstance(config, HopperForwardKernelConfig):
            return replace(features, heads_together=self._heads_together(config))
        if features.looks_at_bounds:
            return features
        exact = (
            self.seq_q % config.B_r == 0
            and self.seq_k % config.B_c == 0
            and self.heads == self.heads_k
            and self.d_head == self.d_v == config.d_head
            and not return_lse
        )
        return replace(features, guarded=not exact)

    def _heads_together(self, config: HopperForwardKernelConfig) -> int:
        """Heads side by side in a tile: of entries of their own lengths those that share one of k
        and v, so that fewer rows lie beyond the queries; a warp's rows are whole queries."""
        group = self.heads_per_kv
        able = self.per_batch and config.specialised and WARP_ROWS % group == 0
        return group if able else 1

    @property
    def per_batch(self) -> bool:
        """Whether batch entries have lengths of their own."""
        return self.total_q is not None or self.total_k is not None or self.seqused_k

    @property
    def heads_per_kv(self) -> int:
        """Heads of q that share one head of k and v."""
        return self.heads // self.heads_k if self.heads_k else 1

    @property
    def lse_shape(self) -> tuple[int, ...]:
        """(batch, heads, seq_q), of a packed q (heads, total_q)."""
        if self.total_q is not None:
            return self.heads, self.total_q
        return self.batch, self.heads, self.seq_q

    def num_tiles(self, rows: int) -> int:
        """Tiles of so many query rows of one head; of packed queries, no fewer than there are."""
        of_each = self.batch * -(-self.seq_q // rows)
        if self.total_q is not None:
            of_each = min(of_each, self.total_q // rows + self.batch)
        return of_each * self.heads

    @property
    def idle(self) -> bool:
        """Whether there is nothing for a kernel to do: no output, or no key to see."""
        rows_q = self.seq_q if self.total_q is None else self.total_q
        rows_k = self.seq_k if self.total_k is None else self.total_k
        no_pages = self.page_keys > 0 and self.pages == 0
        return no_pages or 0 in (self.batch, rows_q, rows_k, self.heads)


def normalised_mask(
    causal: bool, window: Window | None, rows_q: int, rows_k: int
) -> tuple[bool, tuple[int, int] | None]:
    """Whether a mask is causal, and its window if it is neither that nor none.

    No entry has more than `rows_q` queries and `rows_k` keys: a side without a limit, or with a
    wider one, gets the limit that hides nothing.
    """
    left, right = (
        None if side is None or side == -1 else int(side) for side in window or (None, None)
    )
    if causal:
        right = 0
    if left is None and right in (None, 0):
        return right == 0, None
    left = rows_k if left is None else min(left, rows_k)
    return False, (left, rows_q if right is None else min(right, rows_q))


@dataclass(frozen=True)
class Geometry:
    """The grid, threads of a block, bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: int
    smem_bytes: int

    @classmethod
    def of(
        cls, config: KernelConfig, problem: Problem, num_sms: int, chunks: Chunks | None = None
    ) -> Geometry:
        """The launch of a kernel on a device with so many multiprocessors.

        The first family's grid is (query blocks, heads, batch). The Hopper family's is flat, and
        has no more blocks of threads than fit on the device where each takes several tiles; one for
        each tile where keys are in chunks.
        """
        q_blocks = max(1, -(-problem.seq_q // config.B_r))  # a grid without CTAs cannot be launched
        grid = (q_blocks, problem.heads, problem.batch)
        if isinstance(config, HopperForwardKernelConfig):
            tiles = problem.num_tiles(config.B_r)
            places = num_sms * config.side_by_side
            if chunks is not None:
                resident = chunks.num_ctas(problem, config.consumers)
            elif problem.per_batch:
                resident = min(max(tiles, 1), places)
            elif config.tile_order == TileOrder.ONE_EACH:
                resident = tiles
            else:
                resident = min(tiles, places)
            grid = (resident, 1, 1)
        return cls(grid, config.num_threads, config.smem_bytes())
