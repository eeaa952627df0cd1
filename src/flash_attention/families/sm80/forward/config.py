# SPDX-License-Identifier: Apache-2.0
"""FlashForwardKernelConfig: the compile-time choices of the sm_80 kernels (cp.async, mma.sync)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from flash_attention.arch import DEFAULT_ARCH, WARP_SIZE, Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.config import KernelConfig
from flash_attention.families.fields import (
    Bind,
    Needs,
    element_type,
    kernel_config,
    number,
    switch,
    variant,
)
from flash_attention.families.values import Violation, memory_violations

D_HEADS = (64, 128, 192, 256)
LOADS = "load_{Q_mma_load_K_tiles}_{K_mma_load_K_tiles}_{V_mma_load_K_tiles}_tiles"
MMA_ROWS = 16  # rows of one tensor-core product
INT_END = 2**31  # a row stride is a C++ int in the kernel's source


def _fragment_loads(slot: str, *, whole: str) -> Bind:
    """Bind how an operand is read, by the number of tiles at a time."""

    def bind(config: FlashForwardKernelConfig, field: str) -> Variant:
        tiles: int = getattr(config, field)
        if tiles == 0:
            return Variant(slot, "sm80/fragment_loads", whole)
        streamed = "DoubleBuffered" if config.mma_double_buffer_loads else "Interleaved"
        return Variant(slot, "sm80/fragment_loads", streamed, tiles)

    return bind


@kernel_config
class FlashForwardKernelConfig(KernelConfig):
    """The config of one sm_80 kernel (Ampere and newer). Every field changes what is compiled.

    A tile is 16 deep along the contraction of a product. `Q_mma_load_K_tiles`, `K_...` and `V_...`
    are how many tiles of an operand are read into registers at a time. 0 reads the whole block; for
    Q, it stays in registers for all key blocks.
    """

    dtype: DType = element_type("the element type")
    d_head: int = number("the head dimension", D_HEADS)
    B_r: int = number("query rows of a CTA", (64, 128))
    B_c: int = number("keys per key block", (32, 64, 128))
    n_warps: int = number("warps of a CTA", (4, 8))
    async_copy: bool = switch(
        "load by cp.async, else through registers",
        word="async",
        bind=variant("Copy", "sm80/copy", off="PlainCopy", on="AsyncCopy"),
    )
    eager_load_blocks: bool = switch(
        "load V during Q K^T, and the next K during softmax and P V",
        word="eager",
        bind=variant("Schedule", "sm80/schedule", off="Lazy", on="Eager"),
        needs=Needs(
            "async_copy", "needs copies that fly during the products", rule="eager_needs_async"
        ),
    )
    swizzled: bool = switch(
        "XOR-swizzle shared memory, which avoids bank conflicts",
        bind=variant("Layout", "sm80/layout", off="RowMajor", on="XorSwizzle"),
    )
    Q_mma_load_K_tiles: int = number(
        "tiles of Q to read at a time",
        (0, 1, 2),
        word=LOADS,
        always=True,
        bind=_fragment_loads("QFragmentLoads", whole="Held"),
    )
    K_mma_load_K_tiles: int = number(
        "tiles of K to read at a time",
        (0, 1, 2),
        bind=_fragment_loads("KFragmentLoads", whole="Whole"),
    )
    V_mma_load_K_tiles: int = number(
        "tiles of V to read at a time",
        (0, 1, 2),
        bind=_fragment_loads("VFragmentLoads", whole="Whole"),
    )
    mma_double_buffer_loads: bool = switch(
        "read the next tiles during the products of the current ones", word="buffer"
    )
    optimized_softmax: bool = switch(
        "fuse the scale into exp2",
        word="opt_softmax",
        bind=variant("Exponential", "attn/exponential", off="ScaleThenExp", on="FusedExp2"),
    )
    folded_addresses: bool = switch(
        "compute a lane's address once and advance it by constants",
        default=False,
        word="folded",
        bind=variant("Address", "sm80/address", off="Recomputed", on="Folded"),
    )
    serpentine_mma: bool = switch(
        "consecutive products share an operand",
        default=False,
        word="serpentine",
        bind=variant("MmaOrder", "sm80/mma_order", off="RowMajor", on="Serpentine"),
    )
    peel_first_block: bool = switch(
        "separate code for the first key block",
        default=False,
        word="peeled",
        bind=variant("Loop", "sm80/loop", off="Uniform", on="Peeled"),
    )
    stage_output: bool = switch(
        "store O through shared memory",
        default=False,
        word="staged",
        bind=variant("Store", "sm80/store", off="Direct", on="Staged"),
    )
    reciprocal_normalise: bool = switch(
        "multiply O by 1 / sum instead of dividing",
        default=False,
        word="reciprocal",
        bind=variant("Normalise", "attn/normalise", off="Divide", on="Reciprocal"),
    )
    reverse_kv: bool = switch(
        "visit key blocks from the last to the first",
        default=False,
        word="reverse",
        bind=variant("KvOrder", "attn/kv_order", off="Ascending", on="Descending"),
    )
    cache_hints: bool = switch(
        "L2 fetches whole lines, and L1 keeps nothing",
        default=False,
        word="hints",
        bind=variant("Cache", "sm80/cache", off="DefaultPolicy", on="Hinted"),
    )
    column_panels: bool = switch(
        "shared-memory tiles as panels of 64 columns",
        default=False,
        word="panels",
        bind=variant("Panels", "sm80/panels", off="WholeRows", on="Columns64"),
    )
    static_row_stride: int = number(
        "elements between rows; 0 reads the strides from the arguments",
        default=0,
        word="stride_{}",
        bind=variant("RowStride", "sm80/row_stride", off="FromArgs", on="Fixed"),
    )

    oldest_arch: ClassVar[Arch] = DEFAULT_ARCH
    prefix: ClassVar[str] = ""
    name_tile: ClassVar[str] = "{dtype}_d{d_head}_{B_r}x{B_c}_w{n_warps}"

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

    def derived_bindings(self) -> tuple[Binding, ...]:
        return (Number("smem_bytes", self.smem_bytes()),)

    def rules(self, arch: Arch) -> Iterator[Violation]:
        if self.B_r < MMA_ROWS * self.n_warps:
            yield Violation(
                "warp_rows",
                f"n_warps={self.n_warps} leaves B_r={self.B_r} with {self.warp_rows} rows a warp;"
                f" a tensor-core product has {MMA_ROWS}: use 8 warps only with B_r=128",
            )
        loads = (self.Q_mma_load_K_tiles, self.K_mma_load_K_tiles, self.V_mma_load_K_tiles)
        if self.mma_double_buffer_loads and not any(loads):
            yield Violation(
                "double_buffer_needs_tiles",
                "mma_double_buffer_loads=True has nothing to buffer when every operand is read"
                " whole: set one of Q/K/V_mma_load_K_tiles to 1 or 2",
            )
        if (
            self.d_head == 192
            and self.swizzled
            and self.folded_addresses
            and not self.column_panels
        ):
            yield Violation(
                "folded_rows",
                "folded_addresses=True reaches the chunks of a swizzled row by XOR, and rows of 192"
                " elements do not start at a power of two: set column_panels=True",
            )
        stride = self.static_row_stride
        if stride % 8 or not (stride == 0 or self.d_head <= stride < INT_END):
            yield Violation(
                "static_row_stride",
                f"static_row_stride={stride} elements: use 0 (read from the tensors) or a multiple"
                f" of 8 that is at least d_head={self.d_head} and less than 2**31",
            )
        yield from memory_violations(
            *(self.smem_bytes(), registers_needed(self), arch),
            blocks="Q, K and V",
            smaller="use a smaller B_r or B_c",
            fewer="use a smaller B_c, more warps, or read Q in tiles",
        )


def registers_needed(cfg: FlashForwardKernelConfig) -> int:
    """Registers a thread holds at once in the products, by count of the arrays of the kernel.

    ptxas sinks the reads of an operand that is read whole down to their use, so only what one step
    needs is counted for K and V; Q read whole is alive throughout.
    """
    rows, lanes = cfg.warp_rows, 32
    output = rows * cfg.d_head // lanes
    scores = rows * cfg.B_c // lanes
    q = rows * (cfg.d_head if cfg.Q_mma_load_K_tiles == 0 else 16) // (2 * lanes)
    k = cfg.B_c * 16 // (2 * lanes)
    statistics_and_addresses = rows // 4 + 20
    return output + scores + q + min(k, 8) + statistics_and_addresses
