# SPDX-License-Identifier: Apache-2.0
"""FlashBackwardKernelConfig: the compile-time choices of the sm_80 backward kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flash_attention.arch import DEFAULT_ARCH, WARP_SIZE, Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.config import KernelConfig
from flash_attention.families.sm80.backward.rules import first_violation
from flash_attention.families.values import Violation

PANEL = 64  # columns of a panel in shared memory
ELEMENT_BYTES = 2


@dataclass(frozen=True, order=True)
class FlashBackwardKernelConfig(KernelConfig):
    """The config of the sm_80 kernels of a backward pass (Ampere and newer).

    A CTA has B_c keys of one head of k. It visits blocks of B_r queries, sums dK and dV in
    registers, and adds dQ to sums in global memory. If dQ is wanted alone or must be deterministic,
    a CTA of another kernel has B_c queries and visits blocks of B_r keys.
    """

    dtype: DType  # the element type
    d_head: int  # the head dimension
    B_r: int  # queries per block
    B_c: int  # keys of a CTA
    n_warps: int  # warps of a CTA
    column_warps: int = 1  # warps that share the rows of dK and dV, each with some of the columns
    stages: int = 1  # buffers for blocks of Q and dO
    mma_load_tiles: int = 1  # 16 x 16 tiles of the right operand to read at a time
    dq_warp_rows: int = 16  # queries of a warp in the product dS K
    swizzled: bool = False  # XOR-swizzle shared memory, which avoids bank conflicts
    register_operands: bool = False  # P and dS stay in registers, not in shared memory
    eager_load_blocks: bool = False  # load the next Q and dO during the products of this block
    mma_double_buffer_loads: bool = False  # read the next tiles during the products of these
    folded_addresses: bool = False  # compute a lane's address once and advance it by constants
    stage_output: bool = False  # store dK and dV through shared memory
    cache_hints: bool = False  # L2 fetches whole lines, and L1 keeps nothing
    vector_additions: bool = False  # add dQ in vectors of four floats, which needs sm_90

    oldest_arch: ClassVar[Arch] = DEFAULT_ARCH
    prefix: ClassVar[str] = "backward"

    def first_violation(self, arch: Arch) -> Violation | None:
        return first_violation(self, arch)

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

    def bindings(self) -> tuple[Binding, ...]:
        def pick(slot: str, folder: str, on: bool, off_type: str, on_type: str) -> Variant:
            return Variant(slot, folder, on_type if on else off_type)

        backward = "sm80/backward"
        streamed = "DoubleBuffered" if self.mma_double_buffer_loads else "Interleaved"
        schedule = "TwoStages" if self.stages == 2 else "Eager"
        return (
            dtype_binding(self.dtype),
            Number("d_head", self.d_head),
            Number("own_rows", self.B_c),
            Number("visited_rows", self.B_r),
            Number("n_warps", self.n_warps),
            Number("column_warps", self.column_warps),
            Number("stages", self.stages),
            Number("dq_warp_rows", self.dq_warp_rows),
            pick("Layout", "sm80/layout", self.swizzled, "RowMajor", "XorSwizzle"),
            pick("Operands", f"{backward}/operands", self.register_operands, "Shared", "Registers"),
            pick("Schedule", f"{backward}/schedule", self.eager_load_blocks, "Lazy", schedule),
            Variant("Feed", "sm80/feed", streamed, self.mma_load_tiles),
            pick("Address", "sm80/address", self.folded_addresses, "Recomputed", "Folded"),
            pick("Store", f"{backward}/store", self.stage_output, "Direct", "Staged"),
            pick("Cache", "sm80/cache", self.cache_hints, "DefaultPolicy", "Hinted"),
            pick("Additions", f"{backward}/additions", self.vector_additions, "Floats", "Vectors"),
            Variant("Copy", "sm80/copy", "AsyncCopy"),
            Variant("MmaOrder", "sm80/mma_order", "Serpentine"),
            Variant("Panels", "sm80/panels", "Columns64"),
            Variant("RowStride", "sm80/row_stride", "FromArgs"),
        )

    def kernel_name(self) -> str:
        """A name for folders and logs: letters, digits and underscores."""
        tile = f"{self.dtype.name.lower()}_d{self.d_head}_{self.B_r}x{self.B_c}_w{self.n_warps}"
        return "_".join((self.prefix, tile, *self.words()))

    def tile(self) -> tuple[int | str, ...]:
        return self.dtype.name, self.d_head, self.B_r, self.B_c, self.n_warps

    def words(self) -> list[str]:
        numbers = [f"{word}_{getattr(self, field)}" for word, field in NUMBER_TOKENS.items()]
        return numbers + [word for word, field in SWITCH_TOKENS.items() if getattr(self, field)]

    def attn_flop(self, batch: int, heads: int, seq_q: int, seq_k: int | None = None) -> int:
        """FLOP of the five products, as everyone counts them: 10 b h sq sk d."""
        return super().attn_flop(batch, heads, seq_q, seq_k) * 5 // 2


NUMBER_TOKENS = {
    "columns": "column_warps",
    "stages": "stages",
    "load": "mma_load_tiles",
    "dq": "dq_warp_rows",
}
"""Word of the short form for every number that is not of the tile, which follows the word."""
SWITCH_TOKENS = {
    "swizzled": "swizzled",
    "registers": "register_operands",
    "eager": "eager_load_blocks",
    "buffer": "mma_double_buffer_loads",
    "folded": "folded_addresses",
    "staged": "stage_output",
    "hints": "cache_hints",
    "vectors": "vector_additions",
}
"""Word of the short form for every switch, in the order they are written."""


def _tile_bytes(rows: int, columns: int) -> int:
    """Bytes of a tile in shared memory, whose columns fill whole panels."""
    return rows * -(-columns // PANEL) * PANEL * ELEMENT_BYTES
