# SPDX-License-Identifier: Apache-2.0
"""HopperMlaKernelConfig: the compile-time choices of the sm_90 kernels for MLA decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number
from flash_attention.families.fields import (
    as_number,
    element_type,
    kernel_config,
    number,
    switch,
    variant,
)
from flash_attention.families.sm90.split_v import AFTER_TILES, RESCALE, THRESHOLDS, SplitVConfig
from flash_attention.families.values import Violation, not_hopper

STAGES = 2  # blocks of K in shared memory
ROTARY_COLUMNS = 64  # of K, after those of V


@kernel_config
class HopperMlaKernelConfig(SplitVConfig):
    """The config of one sm_90 kernel (H100, H200) for MLA decoding. Every field changes what is
    compiled.

    q and k have d_v + 64 columns. All heads of q share one head of k, whose first d_v columns are
    v. Two warpgroups share 64 rows, and each has half of the columns of O. A third one loads K.
    """

    dtype: DType = element_type("the element type")
    d_v: int = number(
        "the columns of v, which k has too",
        (128, 256, 384, 512),  # a half of V is whole panels of 64 columns
    )
    rescale_threshold: int = number(
        *("rescale O if a maximum grew by over 2^t; 0: every block", THRESHOLDS),
        default=0,
        word="lazy_{}",
        bind=RESCALE,
    )
    rotary_in_registers: bool = switch(
        "the rotary columns of Q; otherwise every product reads them",
        default=False,
        bind=as_number(),
    )
    defer_values: bool = switch(
        "a warpgroup's own P V waits until the next scores are computed",
        default=False,
        bind=variant("Schedule", "sm90/mla/schedule", off="ValuesFirst", on="ValuesDeferred"),
    )

    prefix: ClassVar[str] = "hopper_mla"
    name_tile: ClassVar[str] = "{dtype}_v{d_v}"

    def rules(self, arch: Arch) -> Iterator[Violation]:
        yield from not_hopper(arch, "an MLA config")

    @property
    def d_head(self) -> int:
        """The columns of q and k."""
        return self.d_v + ROTARY_COLUMNS

    @property
    def v_in_k(self) -> bool:
        return True

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Return the bytes of dynamic shared memory of a CTA: Q, K, and what threads exchange."""
        return (self.B_r + STAGES * self.B_c) * self.d_head * elem_size + AFTER_TILES

    def derived_bindings(self) -> tuple[Binding, ...]:
        return (Number("d_head", self.d_head), *super().derived_bindings())
