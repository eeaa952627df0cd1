# SPDX-License-Identifier: Apache-2.0
"""HopperFp8KernelConfig: the compile-time choices of the sm_90 kernels for e4m3 tensors."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import ClassVar

import torch

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.results import E4M3
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.fields import (
    Needs,
    as_number,
    choice,
    element_type,
    kernel_config,
    number,
    switch,
    variant,
)
from flash_attention.families.sm90.forward.config import (
    BARRIER_BYTES,
    WARPGROUP_ROWS,
)
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.specialised import SpecialisedConfig
from flash_attention.families.values import Violation, not_hopper, too_large

COPY_BYTES = 2  # the copy of O is bf16
SUM_ROWS = 8  # rows of the transpose of V that give row sums, with tensor_sums
PANEL_BYTES = 128  # the most columns of a panel of a shared-memory tile
D_HEADS = (64, 128, 256)
MAX_PRODUCT_COLUMNS = 256  # of one wgmma
PANEL_KEYS = 64  # the fewest of a panel of a V that is given transposed
OTHER_REGISTERS = 32  # row maxima and sums, addresses, descriptors, barrier phases
SUMS = variant("Sums", "sm90/fp8/sums", off="Registers", on="TensorCores")


@kernel_config
class HopperFp8KernelConfig(SpecialisedConfig):
    """The config of one sm_90 kernel (H100, H200) for q, k and v of e4m3. Every field changes what
    is compiled.

    A consumer is a warpgroup that computes 64 query rows. A producer warpgroup loads K and V ahead
    of them, into `stages` buffers each. A kernel before this one transposes V, unless it is given
    transposed.
    """

    dtype: DType = element_type("the element type of the output")
    d_head: int = number("the head dimension", D_HEADS)
    consumers: int = number("warpgroups that compute, 64 query rows each", (2, 3))
    B_c: int = number("keys per key block", range(32, 257, 32))
    stages: int = number("buffers of K, and as many of V", (1, 2, 3, 4))
    q_buffers: int = number(
        "buffers of Q; with two the next tile's Q loads early",
        (1, 2),
        default=1,
        word="q_buffers_{}",
    )
    q_in_registers: bool = switch(
        "read Q into registers once, and not in every product",
        default=False,
        bind=variant("QueryOperand", "sm90/fp8/query_operand", off="Shared", on="Registers"),
    )
    overlap: bool = switch(
        "issue Q K^T of the next key block before the softmax of this one",
        default=False,
        bind=variant("Schedule", "sm90/fp8/schedule", off="Serial", on="Overlapped"),
    )
    tensor_sums: bool = switch(
        "the tensor cores add the row sums, with a column of ones", default=False, bind=SUMS
    )
    linear_groups: int = number(
        *("of four groups of 16 keys, those with a piecewise linear 2^x", range(5)),
        default=0,
        word="linear_{}",
        bind=variant("Powers", "sm90/fp8/powers", off="Exact", on="Linear"),
        needs=Needs(
            "tensor_sums",
            "makes weights that only the tensor cores sum",
            rule="linear_groups_need_tensor_sums",
        ),
    )
    promote_blocks: int = number(
        *("key blocks after which O is added to a copy; 0: never", range(65)),
        default=0,
        word="promote_{}",
        bind=variant("Promotion", "sm90/fp8/promotion", off="Never", on="Every"),
    )
    values_transposed: bool = switch(
        "v is given with contiguous keys",
        default=False,
        bind=variant("Values", "sm90/fp8/values", off="Tiled", on="Transposed"),
    )
    tile_order: TileOrder = choice(
        "which CTA computes which tile",
        {
            TileOrder.ONE_EACH: "one_each",
            TileOrder.PERSISTENT: "persistent",
            TileOrder.DYNAMIC: "dynamic_{group_mib}",
        },
        default=TileOrder.PERSISTENT,
    )
    group_mib: int = number(
        *("MiB of K and V that DYNAMIC keeps in L2; 0: those of one head", range(4097)),
        default=0,
        bind=as_number(factor=2),  # tile orders count K and V as 16-bit elements
    )

    prefix: ClassVar[str] = "hopper_fp8"

    @property
    def input_dtype(self) -> torch.dtype:
        return E4M3

    @property
    def register_split(self) -> tuple[int, int]:
        """The registers of a producer's and of a consumer's thread after setmaxnreg."""
        return (32, 160) if self.consumers == 3 else (40, 232)

    @property
    def sum_columns(self) -> int:
        return SUM_ROWS * self.tensor_sums

    @property
    def value_rows(self) -> int:
        """The rows of the transpose of V: a column of V each, and those for row sums."""
        return self.d_head + self.sum_columns

    @property
    def value_columns(self) -> int:
        return self.value_rows

    @property
    def v_transposed(self) -> bool:
        return self.values_transposed

    @property
    def panel_columns(self) -> int:
        """The columns of a panel of a shared-memory tile of Q or K."""
        return min(self.d_head, PANEL_BYTES)

    @property
    def panel_keys(self) -> int:
        """The keys of a panel of a shared-memory tile of a V that is given transposed."""
        return gcd(self.B_c, PANEL_BYTES)

    def box_keys(self, page_keys: int) -> int:
        """Return the keys of a TMA box of k, which lies in one key block and one page."""
        return gcd(self.B_c, page_keys)

    def smem_bytes(self, elem_size: int = 1) -> int:
        """Return the bytes of dynamic shared memory of a CTA: Q, K, V, and the copy of O."""
        queries = self.q_buffers * self.B_r * self.d_head
        keys = self.stages * self.B_c * (self.d_head + self.value_rows)
        copy = self.B_r * self.d_head * COPY_BYTES if self.promote_blocks else 0
        return (queries + keys) * elem_size + copy + BARRIER_BYTES

    def derived_bindings(self) -> tuple[Binding, ...]:
        producer, consumer = self.register_split
        numbers = {
            "producer_registers": producer,
            "consumer_registers": consumer,
            "warpgroup_rows": WARPGROUP_ROWS,
            "panel_columns": self.panel_columns,
            **({"panel_keys": self.panel_keys} if self.values_transposed else {}),
            "barrier_bytes": BARRIER_BYTES,
            "smem_bytes": self.smem_bytes(),
        }
        return (
            *(Number(name, value) for name, value in numbers.items()),
            Variant("Exponential", "attn/exponential", "FusedExp2"),
        )

    def rules(self, arch: Arch) -> Iterator[Violation]:
        yield from not_hopper(arch, "an FP8 config")
        if self.value_rows > MAX_PRODUCT_COLUMNS:
            yield Violation(
                "tensor_sums",
                f"tensor_sums=True makes products of {self.value_rows} columns, and one has at most"
                f" {MAX_PRODUCT_COLUMNS}: set tensor_sums=False",
            )
        if self.values_transposed and self.B_c % PANEL_KEYS:
            yield Violation(
                "values_transposed",
                f"values_transposed=True loads panels of {PANEL_KEYS} keys, B_c={self.B_c}: use a"
                f" multiple of {PANEL_KEYS}",
            )
        if self.tile_order is not TileOrder.DYNAMIC and self.group_mib:
            yield Violation(
                "group_mib",
                f"group_mib={self.group_mib} is for tile_order=TileOrder.DYNAMIC, this is"
                f" TileOrder.{self.tile_order.name}: set group_mib=0",
            )
        yield from too_large(
            f"the buffers of Q, K, V{' and the copy of O' if self.promote_blocks else ''}",
            *(self.smem_bytes(), arch),
            "use a smaller B_c, fewer stages, buffers of Q or consumers",
        )
        if (needed := registers_needed(self)) > (limit := self.register_split[1]):
            yield Violation(
                "registers",
                f"the accumulators, P and Q need about {needed} registers a thread, a thread of"
                f" {self.consumers} consumers has {limit}: use a smaller B_c"
                + (" or fewer consumers" if self.consumers == 3 else ""),
            )


def registers_needed(cfg: HopperFp8KernelConfig) -> int:
    """Count the live registers of a consumer's thread: O, S, P in fours, Q and the rest. With
    `overlap` there are two P."""
    output, scores, weights = cfg.value_rows // 2, cfg.B_c // 2, cfg.B_c // 8
    queries = cfg.d_head // 8 if cfg.q_in_registers else 0
    return output + scores + weights * (1 + cfg.overlap) + queries + OTHER_REGISTERS
