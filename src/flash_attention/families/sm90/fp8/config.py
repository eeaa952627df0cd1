# SPDX-License-Identifier: Apache-2.0
"""HopperFp8KernelConfig: the compile-time choices of the sm_90 kernels for e4m3 tensors."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

import torch

from flash_attention.arch import MEASURED_ARCH, WARP_SIZE, Arch
from flash_attention.call.dtype import DType
from flash_attention.call.results import E4M3
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.config import KernelConfig
from flash_attention.families.sm90.forward.config import (
    BARRIER_BYTES,
    TARGET,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
    tile_rows,
)
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.fp8.rules import first_violation
from flash_attention.families.values import Violation

FLOAT_BYTES = 4
SUM_ROWS = 8  # rows of the transpose of V that give row sums, with tensor_sums
PANEL_BYTES = 128  # the most columns of a panel of a shared-memory tile


@dataclass(frozen=True, order=True)
class HopperFp8KernelConfig(KernelConfig):
    """The config of one sm_90 kernel (H100, H200) for q, k and v of e4m3. Every field changes what
    is compiled.

    A consumer is a warpgroup that computes 64 query rows. A producer warpgroup loads K and V ahead
    of them, into `stages` buffers each. A kernel before this one transposes V, unless it is given
    transposed.
    """

    dtype: DType  # the element type of the output
    d_head: int  # the head dimension
    consumers: int  # warpgroups that compute, 64 query rows each
    B_c: int  # keys per key block
    stages: int  # buffers of K, and as many of V
    q_buffers: int = 1  # buffers of Q; with two the next tile's Q loads early
    q_in_registers: bool = False  # read Q into registers once, and not in every product
    overlap: bool = False  # issue Q K^T of the next key block before the softmax of this one
    tensor_sums: bool = False  # the tensor cores add the row sums, with a column of ones
    linear_groups: int = 0  # of four groups of 16 keys, those with a piecewise linear 2^x
    promote_blocks: int = 0  # key blocks after which O is added to a copy in fp32; 0: never
    values_transposed: bool = False  # v is given with contiguous keys
    tile_order: TileOrder = TileOrder.PERSISTENT  # which CTA computes which tile
    group_mib: int = 0  # MiB of K and V that DYNAMIC keeps in L2; 0: those of one head

    oldest_arch: ClassVar[Arch] = MEASURED_ARCH
    prefix: ClassVar[str] = "hopper_fp8"

    def first_violation(self, arch: Arch) -> Violation | None:
        return first_violation(self, arch)

    def target(self, arch: Arch) -> str:
        return TARGET

    @property
    def B_r(self) -> int:
        """The number of query rows of a CTA."""
        return tile_rows(self.consumers)

    @property
    def visits_descending(self) -> bool:
        return True

    @property
    def input_dtype(self) -> torch.dtype:
        return E4M3

    @property
    def num_threads(self) -> int:
        return WARPGROUP_THREADS * (self.consumers + 1)

    @property
    def computing_warps(self) -> int:
        """The number of warps that compute, without the producer's."""
        return WARPGROUP_THREADS // WARP_SIZE * self.consumers

    @property
    def register_split(self) -> tuple[int, int]:
        """The registers of a producer's and of a consumer's thread after setmaxnreg."""
        return (32, 160) if self.consumers == 3 else (40, 232)

    @property
    def register_facts(self) -> dict[str, int]:
        producer, consumer = self.register_split
        return {"registers of a producer": producer, "registers of a consumer": consumer}

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

    def smem_bytes(self, elem_size: int = 1) -> int:
        """Return the bytes of dynamic shared memory of a CTA: Q, K, V, and the copy of O."""
        queries = self.q_buffers * self.B_r * self.d_head
        keys = self.stages * self.B_c * (self.d_head + self.value_rows)
        copy = self.B_r * self.d_head * FLOAT_BYTES if self.promote_blocks else 0
        return (queries + keys) * elem_size + copy + BARRIER_BYTES

    def bindings(self, *, uneven: bool = False) -> tuple[Binding, ...]:
        """Return the C++ types and numbers. With `uneven`, sequences differ in length."""
        producer, consumer = self.register_split
        numbers = {
            "d_head": self.d_head,
            "consumers": self.consumers,
            "B_c": self.B_c,
            "stages": self.stages,
            "q_buffers": self.q_buffers,
            "group_mib": 2 * self.group_mib,  # tile orders count K and V as 16-bit elements
            "producer_registers": producer,
            "consumer_registers": consumer,
            "warpgroup_rows": WARPGROUP_ROWS,
            "panel_columns": self.panel_columns,
            **({"panel_keys": self.panel_keys} if self.values_transposed else {}),
            "barrier_bytes": BARRIER_BYTES,
            "smem_bytes": self.smem_bytes(),
        }
        operand = "Registers" if self.q_in_registers else "Shared"
        promotion = (
            Variant("Promotion", "sm90/fp8/promotion", "Every", self.promote_blocks)
            if self.promote_blocks
            else Variant("Promotion", "sm90/fp8/promotion", "Never")
        )
        powers = (
            Variant("Powers", "sm90/fp8/powers", "Linear", self.linear_groups)
            if self.linear_groups
            else Variant("Powers", "sm90/fp8/powers", "Exact")
        )
        schedule = "Overlapped" if self.overlap else "Serial"
        order = {
            TileOrder.ONE_EACH: "OneEach",
            TileOrder.PERSISTENT: "Persistent",
            TileOrder.DYNAMIC: "Packed" if uneven else "Dynamic",
        }[self.tile_order]
        return (
            dtype_binding(self.dtype),
            *(Number(name, value) for name, value in numbers.items()),
            Variant("QueryOperand", "sm90/fp8/query_operand", operand),
            Variant("Schedule", "sm90/fp8/schedule", schedule),
            self.sums_binding,
            Variant(
                *("Values", "sm90/fp8/values"), "Transposed" if self.values_transposed else "Tiled"
            ),
            powers,
            promotion,
            Variant("TileOrder", "sm90/tile_order", order),
            Variant("Exponential", "attn/exponential", "FusedExp2"),
        )

    @property
    def sums_binding(self) -> Variant:
        """The variant that adds the row sums. The transpose of V depends on it, too."""
        return Variant("Sums", "sm90/fp8/sums", "TensorCores" if self.tensor_sums else "Registers")

    def kernel_name(self) -> str:
        """Return a name for folders and logs, of letters, digits and underscores."""
        tile = f"{self.dtype.name.lower()}_d{self.d_head}_{self.B_r}x{self.B_c}_s{self.stages}"
        return "_".join((self.prefix, tile, *self.words()))

    def tile(self) -> tuple[int | str, ...]:
        return self.dtype.name, self.d_head, self.consumers, self.B_c, self.stages

    def words(self) -> list[str]:
        order = {
            TileOrder.ONE_EACH: "one_each",
            TileOrder.PERSISTENT: "persistent",
            TileOrder.DYNAMIC: f"dynamic_{self.group_mib}",
        }
        tokens = (
            self.q_buffers > 1 and f"q_buffers_{self.q_buffers}",
            self.q_in_registers and "q_in_registers",
            self.overlap and "overlap",
            self.tensor_sums and "tensor_sums",
            self.linear_groups and f"linear_{self.linear_groups}",
            self.promote_blocks and f"promote_{self.promote_blocks}",
            self.values_transposed and "values_transposed",
            order[self.tile_order],
        )
        return [token for token in tokens if token]
