# SPDX-License-Identifier: Apache-2.0
"""FlashBackwardKernelConfig: the compile-time choices of the sm_80 backward kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from flash_attention.arch import DEFAULT_ARCH, WARP_SIZE, Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Variant
from flash_attention.families.config import KernelConfig
from flash_attention.families.fields import (
    Needs,
    element_type,
    kernel_config,
    number,
    switch,
    variant,
)
from flash_attention.families.values import Violation, memory_violations

PANEL = 64  # columns of a panel in shared memory
ELEMENT_BYTES = 2
D_HEADS = (32, 64, 96, 128, 192, 256)
MMA_ROWS = 16  # rows of one tensor-core product
VECTOR_ADDITIONS = (9, 0)  # the compute capability that has them


@kernel_config
class FlashBackwardKernelConfig(KernelConfig):
    """The config of the sm_80 kernels of a backward pass (Ampere and newer).

    A CTA has B_c keys of one head of k. It visits blocks of B_r queries, sums dK and dV in
    registers, and adds dQ to sums in global memory. If dQ is wanted alone or must be deterministic,
    a CTA of another kernel has B_c queries and visits blocks of B_r keys.
    """

    dtype: DType = element_type("the element type")
    d_head: int = number("the head dimension", D_HEADS)
    B_r: int = number("queries per block", (32, 64, 128), bind="visited_rows")
    B_c: int = number("keys of a CTA", (32, 64, 128), bind="own_rows")
    n_warps: int = number("warps of a CTA", (4, 8))
    column_warps: int = number(
        *("warps that share the rows of dK and dV, each with some of the columns", (1, 2)),
        default=1,
        word="columns_{}",
        always=True,
    )
    stages: int = number(
        *("buffers for blocks of Q and dO", (1, 2)),
        default=1,
        word="stages_{}",
        always=True,
        needs=Needs(
            "eager_load_blocks",
            "has a buffer for the next block, which is loaded early",
            rule="stages_need_eager",
        ),
    )
    mma_load_tiles: int = number(
        *("16 x 16 tiles of the right operand to read at a time", (1, 2, 4)),
        default=1,
        word="load_{}",
        always=True,
        bind=None,
    )
    dq_warp_rows: int = number(
        *("queries of a warp in the product dS K", (16, 32)), default=16, word="dq_{}", always=True
    )
    swizzled: bool = switch(
        "XOR-swizzle shared memory, which avoids bank conflicts",
        default=False,
        bind=variant("Layout", "sm80/layout", off="RowMajor", on="XorSwizzle"),
    )
    register_operands: bool = switch(
        "P and dS stay in registers, not in shared memory",
        default=False,
        word="registers",
        bind=variant("Operands", "sm80/backward/operands", off="Shared", on="Registers"),
    )
    eager_load_blocks: bool = switch(
        "load the next Q and dO during the products of this block", default=False, word="eager"
    )
    mma_double_buffer_loads: bool = switch(
        "read the next tiles during the products of these", default=False, word="buffer"
    )
    folded_addresses: bool = switch(
        "compute a lane's address once and advance it by constants",
        default=False,
        word="folded",
        bind=variant("Address", "sm80/address", off="Recomputed", on="Folded"),
    )
    stage_output: bool = switch(
        "store dK and dV through shared memory",
        default=False,
        word="staged",
        bind=variant("Store", "sm80/backward/store", off="Direct", on="Staged"),
    )
    cache_hints: bool = switch(
        "L2 fetches whole lines, and L1 keeps nothing",
        default=False,
        word="hints",
        bind=variant("Cache", "sm80/cache", off="DefaultPolicy", on="Hinted"),
    )
    vector_additions: bool = switch(
        "add dQ in vectors of four floats, which needs sm_90",
        default=False,
        word="vectors",
        bind=variant("Additions", "sm80/backward/additions", off="Floats", on="Vectors"),
    )

    oldest_arch: ClassVar[Arch] = DEFAULT_ARCH
    prefix: ClassVar[str] = "backward"
    name_tile: ClassVar[str] = "{dtype}_d{d_head}_{B_r}x{B_c}_w{n_warps}"

    @property
    def num_threads(self) -> int:
        return self.n_warps * WARP_SIZE

    @property
    def computing_warps(self) -> int:
        """The number of warps that compute, which is all of them."""
        return self.n_warps

    @property
    def loop_products(self) -> tuple[int, int]:
        return 5, self.n_warps

    @property
    def warp_rows(self) -> int:
        """Rows of dK and dV of one warp."""
        return self.B_c * self.column_warps // self.n_warps

    @property
    def sum_order(self) -> str:
        """The C++ type of the order of dq_sum."""
        return "ByLane" if self.vector_additions else "ByValue"

    def smem_bytes(self, elem_size: int = ELEMENT_BYTES) -> int:
        """Dynamic shared memory of a CTA that computes all gradients."""
        weights = 1 if self.register_operands else 2
        return self.smem_with(weights=weights, statistics=True) * elem_size // ELEMENT_BYTES

    def smem_with(self, *, weights: int, statistics: bool) -> int:
        """Dynamic shared memory of a CTA: K and V, stages of Q and dO and perhaps their statistics,
        and `weights` tiles of P and dS."""
        visited = 2 * _tile_bytes(self.B_r, self.d_head) + (8 * self.B_r if statistics else 0)
        own = 2 * _tile_bytes(self.B_c, self.d_head)
        return own + self.stages * visited + weights * _tile_bytes(self.B_c, self.B_r)

    def derived_bindings(self) -> tuple[Binding, ...]:
        early = "TwoStages" if self.stages == 2 else "Eager"
        streamed = "DoubleBuffered" if self.mma_double_buffer_loads else "Interleaved"
        return (
            Variant(
                *("Schedule", "sm80/backward/schedule"), early if self.eager_load_blocks else "Lazy"
            ),
            Variant("FragmentLoads", "sm80/fragment_loads", streamed, self.mma_load_tiles),
            Variant("Copy", "sm80/copy", "AsyncCopy"),
            Variant("MmaOrder", "sm80/mma_order", "Serpentine"),
            Variant("Panels", "sm80/panels", "Columns64"),
            Variant("RowStride", "sm80/row_stride", "FromArgs"),
        )

    def attn_flop(self, batch: int, heads: int, seq_q: int, seq_k: int | None = None) -> int:
        """FLOP of the five products, as everyone counts them: 10 b h sq sk d."""
        return super().attn_flop(batch, heads, seq_q, seq_k) * 5 // 2

    def rules(self, arch: Arch) -> Iterator[Violation]:
        yield from _warp_violations(self)
        if self.register_operands and self.column_warps > 1:
            yield Violation(
                "registers_need_rows",
                f"register_operands=True keeps P and dS in the warp that computed them, and"
                f" column_warps={self.column_warps} warps need them: set column_warps=1 or"
                " register_operands=False",
            )
        if self.vector_additions and arch.capability < VECTOR_ADDITIONS:
            yield Violation(
                "vector_additions",
                f"vector_additions=True needs sm_90 or newer, not {arch.name}: set it to False",
            )
        yield from memory_violations(
            *(self.smem_bytes(), registers_needed(self), arch),
            blocks="K, V, Q, dO, P and dS",
            smaller="use a smaller B_r or B_c, or one stage",
            fewer="use a smaller B_r or B_c, or more warps",
        )


def _tile_bytes(rows: int, columns: int) -> int:
    """Bytes of a tile in shared memory, whose columns fill whole panels."""
    return rows * -(-columns // PANEL) * PANEL * ELEMENT_BYTES


def _warp_violations(cfg: FlashBackwardKernelConfig) -> Iterator[Violation]:
    if cfg.warp_rows < MMA_ROWS:
        yield Violation(
            "warp_rows",
            f"n_warps={cfg.n_warps} with column_warps={cfg.column_warps} leave B_c={cfg.B_c} with"
            f" {cfg.warp_rows} rows a warp; a tensor-core product has {MMA_ROWS}: use fewer warps"
            " or a larger B_c",
        )
    row_warps = cfg.B_r // cfg.dq_warp_rows
    tiles = cfg.d_head // MMA_ROWS
    if row_warps > cfg.n_warps or tiles % (cfg.n_warps // row_warps):
        yield Violation(
            "dq_warps",
            f"dq_warp_rows={cfg.dq_warp_rows} cuts B_r={cfg.B_r} queries and {tiles} tiles of 16"
            f" columns into parts that n_warps={cfg.n_warps} warps do not share evenly: use"
            f" dq_warp_rows={48 - cfg.dq_warp_rows} or another B_r",
        )


def registers_needed(cfg: FlashBackwardKernelConfig) -> int:
    """Registers a thread holds at once, by count of the arrays of the kernel: dK and dV, then
    either S and dP or dQ."""
    sums = 2 * cfg.warp_rows * cfg.d_head // cfg.column_warps
    scores = 2 * cfg.warp_rows * cfg.B_r // cfg.column_warps
    dq = cfg.B_r * cfg.d_head // cfg.n_warps
    fragments_and_addresses = 32
    return (sums + max(scores, dq)) // WARP_SIZE + fragments_and_addresses
