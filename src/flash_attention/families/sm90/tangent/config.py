# SPDX-License-Identifier: Apache-2.0
"""HopperTangentKernelConfig: the compile-time choices of the sm_90 kernels for tangents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from flash_attention.arch import MEASURED_ARCH, WARP_SIZE, Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.config import KernelConfig
from flash_attention.families.fields import element_type, kernel_config, number
from flash_attention.families.sm90.forward.config import (
    BARRIER_BYTES,
    TARGET,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
)
from flash_attention.families.values import Violation, not_hopper

BLOCK_KEYS = {64: 96, 128: 64}  # by d_head: S and O with their tangents fill the registers
CONSUMERS = 2
STAGES = 2
PANEL_COLUMNS = 64  # of a shared-memory tile
# P is at most 2^t. In float16, its products with the tangents of scores are no larger than these.
RESCALE_THRESHOLDS = {DType.BF16: 8, DType.FP16: 0}
GROUP_MIB = 32  # of K and V, and as many of their tangents, that a group of heads keeps in L2


@kernel_config
class HopperTangentKernelConfig(KernelConfig):
    """The config of one sm_90 kernel (H100, H200) that computes the output and its tangent.

    Two warpgroups compute 64 query rows each. A third one loads K, V and their tangents.
    """

    dtype: DType = element_type("the element type")
    d_head: int = number("the head dimension", tuple(BLOCK_KEYS))

    oldest_arch: ClassVar[Arch] = MEASURED_ARCH
    prefix: ClassVar[str] = "hopper_tangent"
    name_tile: ClassVar[str] = "{dtype}_d{d_head}"

    def rules(self, arch: Arch) -> Iterator[Violation]:
        yield from not_hopper(arch, "a config of tangents")

    def target(self, arch: Arch) -> str:
        return TARGET

    @property
    def B_r(self) -> int:
        """The number of query rows of a CTA."""
        return CONSUMERS * WARPGROUP_ROWS

    @property
    def B_c(self) -> int:
        """The keys of a key block."""
        return BLOCK_KEYS[self.d_head]

    @property
    def visits_descending(self) -> bool:
        return True

    @property
    def num_threads(self) -> int:
        return WARPGROUP_THREADS * (CONSUMERS + 1)

    @property
    def computing_warps(self) -> int:
        """The number of warps that compute, without the producer's."""
        return WARPGROUP_THREADS // WARP_SIZE * CONSUMERS

    @property
    def register_split(self) -> tuple[int, int]:
        """The registers of a producer's and of a consumer's thread after setmaxnreg."""
        return 24, 240

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Return the bytes of dynamic shared memory of a CTA: Q, the stages of K and V, each with
        its tangent, and the barriers."""
        rows = self.B_r + 2 * STAGES * self.B_c
        return 2 * rows * self.d_head * elem_size + BARRIER_BYTES

    def derived_bindings(self) -> tuple[Binding, ...]:
        producer, consumer = self.register_split
        numbers = {
            "B_r": self.B_r,
            "B_c": self.B_c,
            "consumers": CONSUMERS,
            "stages": STAGES,
            "producer_registers": producer,
            "consumer_registers": consumer,
            "panel_columns": PANEL_COLUMNS,
            "group_mib": GROUP_MIB,
            "barrier_bytes": BARRIER_BYTES,
            "smem_bytes": self.smem_bytes(),
        }
        return (
            *(Number(name, value) for name, value in numbers.items()),
            Variant("Exponential", "attn/exponential", "FusedExp2"),
            Variant("Rescale", "attn/rescale", "Lazy", RESCALE_THRESHOLDS[self.dtype]),
            Variant("TileOrder", "sm90/tile_order", "Dynamic"),
        )
