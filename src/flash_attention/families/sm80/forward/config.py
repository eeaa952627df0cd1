# SPDX-License-Identifier: Apache-2.0
"""FlashForwardKernelConfig: the compile-time choices of the sm_80 kernels (cp.async, mma.sync)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flash_attention.arch import DEFAULT_ARCH, WARP_SIZE, Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.config import KernelConfig
from flash_attention.families.sm80.forward.rules import first_violation
from flash_attention.families.values import Violation


@dataclass(frozen=True, order=True)
class FlashForwardKernelConfig(KernelConfig):
    """The config of one sm_80 kernel (Ampere and newer). Every field changes what is compiled.

    A tile is 16 deep along the contraction of a product. `Q_mma_load_K_tiles`, `K_...` and `V_...`
    are how many tiles of an operand are read into registers at a time. 0 reads the whole block; for
    Q, it stays in registers for all key blocks.
    """

    dtype: DType  # the element type
    d_head: int  # the head dimension
    B_r: int  # query rows of a CTA
    B_c: int  # keys per key block
    n_warps: int  # warps of a CTA
    async_copy: bool  # load by cp.async, else through registers
    eager_load_blocks: bool  # load V during Q K^T, and the next K during softmax and P V
    swizzled: bool  # XOR-swizzle shared memory, which avoids bank conflicts
    Q_mma_load_K_tiles: int  # tiles of Q to read at a time
    K_mma_load_K_tiles: int  # tiles of K to read at a time
    V_mma_load_K_tiles: int  # tiles of V to read at a time
    mma_double_buffer_loads: bool  # read the next tiles during the products of the current ones
    optimized_softmax: bool  # fuse the scale into exp2
    folded_addresses: bool = False  # compute a lane's address once and advance it by constants
    serpentine_mma: bool = False  # consecutive products share an operand
    peel_first_block: bool = False  # separate code for the first key block
    stage_output: bool = False  # store O through shared memory
    reciprocal_normalise: bool = False  # multiply O by 1 / sum instead of dividing
    reverse_kv: bool = False  # visit key blocks from the last to the first
    cache_hints: bool = False  # L2 fetches whole lines, and L1 keeps nothing
    column_panels: bool = False  # shared-memory tiles as panels of 64 columns
    static_row_stride: int = 0  # elements between rows; 0 reads the strides from the arguments

    oldest_arch: ClassVar[Arch] = DEFAULT_ARCH
    prefix: ClassVar[str] = ""

    def first_violation(self, arch: Arch) -> Violation | None:
        return first_violation(self, arch)

    @property
    def visits_descending(self) -> bool:
        """Whether key blocks are visited from the last to the first."""
        return self.reverse_kv

    @property
    def num_threads(self) -> int:
        return self.n_warps * WARP_SIZE

    @property
    def computing_warps(self) -> int:
        """The number of warps that compute, which is all of them."""
        return self.n_warps

    @property
    def row_stride(self) -> int:
        """The row stride that is compiled in, in elements; 0 for any."""
        return self.static_row_stride

    @property
    def warp_rows(self) -> int:
        """Query rows one warp computes."""
        return self.B_r // self.n_warps

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Dynamic shared memory of a CTA: one block each of Q, K and V."""
        return (self.B_r + 2 * self.B_c) * self.d_head * elem_size

    def bindings(self) -> tuple[Binding, ...]:
        def pick(slot: str, folder: str, on: bool, off_type: str, on_type: str) -> Variant:
            return Variant(slot, folder, on_type if on else off_type)

        return (
            dtype_binding(self.dtype),
            Number("d_head", self.d_head),
            Number("B_r", self.B_r),
            Number("B_c", self.B_c),
            Number("n_warps", self.n_warps),
            Number("smem_bytes", self.smem_bytes()),
            pick("Copy", "sm80/copy", self.async_copy, "PlainCopy", "AsyncCopy"),
            pick("Schedule", "sm80/schedule", self.eager_load_blocks, "Lazy", "Eager"),
            pick("Layout", "sm80/layout", self.swizzled, "RowMajor", "XorSwizzle"),
            self._feed("QFeed", self.Q_mma_load_K_tiles, whole="Held"),
            self._feed("KFeed", self.K_mma_load_K_tiles, whole="Whole"),
            self._feed("VFeed", self.V_mma_load_K_tiles, whole="Whole"),
            pick(
                "Exponential",
                "attn/exponential",
                self.optimized_softmax,
                "ScaleThenExp",
                "FusedExp2",
            ),
            pick("Address", "sm80/address", self.folded_addresses, "Recomputed", "Folded"),
            pick("MmaOrder", "sm80/mma_order", self.serpentine_mma, "RowMajor", "Serpentine"),
            pick("Loop", "sm80/loop", self.peel_first_block, "Uniform", "Peeled"),
            pick("Store", "sm80/store", self.stage_output, "Direct", "Staged"),
            pick("Normalise", "attn/normalise", self.reciprocal_normalise, "Divide", "Reciprocal"),
            pick("KvOrder", "attn/kv_order", self.reverse_kv, "Ascending", "Descending"),
            pick("Cache", "sm80/cache", self.cache_hints, "DefaultPolicy", "Hinted"),
            pick("Panels", "sm80/panels", self.column_panels, "WholeRows", "Columns64"),
            Variant("RowStride", "sm80/row_stride", "Fixed", self.static_row_stride)
            if self.static_row_stride
            else Variant("RowStride", "sm80/row_stride", "FromArgs"),
        )

    def _feed(self, slot: str, tiles: int, *, whole: str) -> Variant:
        if tiles == 0:
            return Variant(slot, "sm80/feed", whole)
        streamed = "DoubleBuffered" if self.mma_double_buffer_loads else "Interleaved"
        return Variant(slot, "sm80/feed", streamed, tiles)

    def kernel_name(self) -> str:
        """A name for folders and logs: letters, digits and underscores."""
        tile = f"{self.dtype.name.lower()}_d{self.d_head}_{self.B_r}x{self.B_c}_w{self.n_warps}"
        return "_".join((tile, *(token.replace("-", "_") for token in self.words())))

    def tile(self) -> tuple[int | str, ...]:
        return self.dtype.name, self.d_head, self.B_r, self.B_c, self.n_warps

    def words(self) -> list[str]:
        loads = (self.Q_mma_load_K_tiles, self.K_mma_load_K_tiles, self.V_mma_load_K_tiles)
        tokens = [token for token, field in SWITCH_TOKENS.items() if getattr(self, field)]
        after_swizzle = sum(t in ("async", "eager", "swizzled") for t in tokens)
        tokens.insert(after_swizzle, f"load_{loads[0]}_{loads[1]}_{loads[2]}_tiles")
        if self.static_row_stride:
            tokens.append(f"stride_{self.static_row_stride}")
        return tokens


SWITCH_TOKENS = {
    "async": "async_copy",
    "eager": "eager_load_blocks",
    "swizzled": "swizzled",
    "buffer": "mma_double_buffer_loads",
    "opt_softmax": "optimized_softmax",
    "folded": "folded_addresses",
    "serpentine": "serpentine_mma",
    "peeled": "peel_first_block",
    "staged": "stage_output",
    "reciprocal": "reciprocal_normalise",
    "reverse": "reverse_kv",
    "hints": "cache_hints",
    "panels": "column_panels",
}
"""Word of the short form for every switch, in the order they are written."""
