# SPDX-License-Identifier: Apache-2.0
"""HopperTangentKernelConfig: the compile-time choices of the sm_90 kernels for tangents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.fields import choice, element_type, kernel_config, number
from flash_attention.families.sm90.forward.config import (
    BARRIER_BYTES,
    MOST_GROUP_MIB,
    OTHER_REGISTERS,
)
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.specialised import SpecialisedConfig
from flash_attention.families.values import Violation, not_hopper, too_large

D_HEADS = (64, 128)
PANEL_COLUMNS = 64  # of a shared-memory tile
WALKS = {
    TileOrder.ONE_EACH: "OneEach",
    TileOrder.PERSISTENT: "Persistent",
    TileOrder.DYNAMIC: "Dynamic",
}


@kernel_config
class HopperTangentKernelConfig(SpecialisedConfig):
    """The config of one sm_90 kernel (H100, H200) that computes the output and its tangent. Every
    field changes what is compiled.

    A consumer is a warpgroup that computes 64 query rows. A producer warpgroup loads K, V and their
    tangents ahead of them, into `stages` buffers each.
    """

    dtype: DType = element_type("the element type")
    d_head: int = number("the head dimension", D_HEADS)
    consumers: int = number("warpgroups that compute, 64 query rows each", (2, 3))
    B_c: int = number("keys per key block", range(16, 129, 16))
    stages: int = number("buffers of K, V and the tangent of each", (1, 2, 3, 4))
    rescale_threshold: int = number(
        "rescale O and its tangent if a maximum grew by over 2^t",
        range(16),  # P up to 2^t, and fp16 ends at 2^16
        default=0,
        word="lazy_{}",
        bind=None,
    )
    tile_order: TileOrder = choice(
        "which CTA computes which tile",
        {
            TileOrder.ONE_EACH: "one_each",
            TileOrder.PERSISTENT: "persistent",
            TileOrder.DYNAMIC: "dynamic_{group_mib}",
        },
        default=TileOrder.DYNAMIC,
    )
    group_mib: int = number(
        "MiB of K and V, and as many of their tangents, that DYNAMIC keeps in L2; 0: of one head",
        range(MOST_GROUP_MIB + 1),
        default=0,
    )

    prefix: ClassVar[str] = "hopper_tangent"

    @property
    def register_split(self) -> tuple[int, int]:
        """The registers of a producer's and of a consumer's thread after setmaxnreg."""
        return (32, 160) if self.consumers == 3 else (24, 240)

    @property
    def loop_products(self) -> tuple[int, int]:
        return 6, self.computing_warps

    @property
    def loaded_columns(self) -> int:
        return 4 * self.d_head

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Return the bytes of dynamic shared memory of a CTA: Q, the stages of K and V, each with
        its tangent, and the barriers."""
        rows = self.B_r + 2 * self.stages * self.B_c
        return 2 * rows * self.d_head * elem_size + BARRIER_BYTES

    def derived_bindings(self) -> tuple[Binding, ...]:
        producer, consumer = self.register_split
        numbers = {
            "B_r": self.B_r,
            "producer_registers": producer,
            "consumer_registers": consumer,
            "panel_columns": PANEL_COLUMNS,
            "barrier_bytes": BARRIER_BYTES,
            "smem_bytes": self.smem_bytes(),
        }
        return (
            *(Number(name, value) for name, value in numbers.items()),
            Variant("Exponential", "attn/exponential", "FusedExp2"),
            Variant("Rescale", "attn/rescale", "Lazy", self.rescale_threshold),
            Variant("TileOrder", "sm90/tile_order", WALKS[self.tile_order]),
        )

    def rules(self, arch: Arch) -> Iterator[Violation]:
        yield from not_hopper(arch, "a config of tangents")
        if self.rescale_threshold and self.dtype is DType.FP16:
            yield Violation(
                "rescale_threshold",
                f"rescale_threshold={self.rescale_threshold} makes P up to 2^"
                f"{self.rescale_threshold}, whose products with the tangents of scores may not fit"
                " float16: set rescale_threshold=0, or use BF16",
            )
        if self.tile_order is not TileOrder.DYNAMIC and self.group_mib:
            yield Violation(
                "group_mib",
                f"group_mib={self.group_mib} is for tile_order=TileOrder.DYNAMIC, this is"
                f" TileOrder.{self.tile_order.name}: set group_mib=0",
            )
        yield from too_large(
            *("the buffers of Q, K, V and their tangents", self.smem_bytes(), arch),
            "use a smaller B_c, fewer stages or consumers",
        )
        if (needed := registers_needed(self)) > (limit := self.register_split[1]):
            yield Violation(
                "registers",
                f"the accumulators and P need about {needed} registers a thread, a thread of"
                f" {self.consumers} consumers has {limit}: use a smaller B_c"
                + (" or fewer consumers" if self.consumers == 3 else ""),
            )


def registers_needed(cfg: HopperTangentKernelConfig) -> int:
    """Count the live registers of a consumer's thread: O and S with their tangents, P in pairs, and
    the rest. P times the tangent of S takes the place of the latter."""
    return cfg.d_head + cfg.B_c + cfg.B_c // 4 + OTHER_REGISTERS
