# SPDX-License-Identifier: Apache-2.0
"""HopperWideBackwardKernelConfig: the compile-time choices of the sm_90 backward pass of wide
heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from flash_attention.arch import MEASURED_ARCH, WARP_SIZE, Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number
from flash_attention.families.config import KernelConfig
from flash_attention.families.fields import element_type, kernel_config, number
from flash_attention.families.sm90.forward.config import TARGET, WARPGROUP_ROWS, WARPGROUP_THREADS
from flash_attention.families.values import Violation, not_hopper

D_HEADS = (384, 512)  # two passes of whole panels, as wide as one wgmma
PASSES = 2  # CTAs that share the columns of a gradient
SLICE_COLUMNS = 64  # of a head, which are loaded at a time
STAGES = 3
MBARRIER_BYTES = 8
WARPGROUPS = 2  # that compute
REGISTERS = {"producer": 40, "consumer": 232}


@kernel_config
class HopperWideBackwardKernelConfig(KernelConfig):
    """The config of one sm_90 backward pass (H100, H200) for head dimensions up to 512. Every field
    changes what is compiled.

    A first kernel computes P and dS of tiles of 128 queries and 256 keys, and stores them. Two more
    compute dV and dK, and dQ, as plain products, with half of the columns in a CTA.
    """

    dtype: DType = element_type("the element type")
    d_head: int = number("the largest head dimension", D_HEADS, bind=None)

    oldest_arch: ClassVar[Arch] = MEASURED_ARCH
    prefix: ClassVar[str] = "hopper_wide_backward"
    name_tile: ClassVar[str] = "{dtype}_d{d_head}"

    def target(self, arch: Arch) -> str:
        return TARGET

    def rules(self, arch: Arch) -> Iterator[Violation]:
        yield from not_hopper(arch, "a config of the backward pass of wide heads")

    @property
    def B_r(self) -> int:
        """The queries of a tile."""
        return WARPGROUPS * WARPGROUP_ROWS

    @property
    def B_c(self) -> int:
        """The keys of a tile."""
        return 256

    @property
    def pass_columns(self) -> int:
        """The columns of a gradient that a CTA computes."""
        return self.d_head // PASSES

    @property
    def num_threads(self) -> int:
        return WARPGROUP_THREADS * (1 + WARPGROUPS)

    @property
    def computing_warps(self) -> int:
        return WARPGROUP_THREADS // WARP_SIZE * WARPGROUPS

    @property
    def register_facts(self) -> dict[str, int]:
        return {f"registers of a {role}": count for role, count in REGISTERS.items()}

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Return the bytes of dynamic shared memory of the first kernel: slices of the queries and
        the keys, the scores that leave, and the mbarriers."""
        slices = STAGES * SLICE_COLUMNS * (self.B_r + self.B_c)
        return (slices + self.B_r * self.B_c) * elem_size + STAGES * 2 * MBARRIER_BYTES

    def derived_bindings(self) -> tuple[Binding, ...]:
        numbers = {
            "stages": STAGES,
            **{f"{role}_registers": count for role, count in REGISTERS.items()},
            "smem_bytes": self.smem_bytes(),
        }
        return tuple(Number(name, value) for name, value in numbers.items())
