# SPDX-License-Identifier: Apache-2.0
"""HopperWideKernelConfig: the compile-time choices of the sm_90 kernels for wide heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.families.fields import element_type, kernel_config, number
from flash_attention.families.sm90.split_v import (
    AFTER_TILES,
    HALVES,
    RESCALE,
    THRESHOLDS,
    SplitVConfig,
)
from flash_attention.families.values import Violation, not_hopper

D_HEADS = range(64, 513, 64)  # whole panels of shared memory
VALUE_COLUMNS = range(128, 513, 128)  # a half of V is whole panels


@kernel_config
class HopperWideKernelConfig(SplitVConfig):
    """The config of one sm_90 kernel (H100, H200) for head dimensions up to 512. Every field
    changes what is compiled.

    Two warpgroups share 64 rows, and each has half of the columns of O. They compute the scores of
    alternate key blocks. A third one loads K and V, which have a buffer each.
    """

    dtype: DType = element_type("the element type")
    d_head: int = number("the columns of q and k", D_HEADS)
    d_v: int = number("the columns of v", VALUE_COLUMNS)
    rescale_threshold: int = number(
        *("rescale O if a maximum grew by over 2^t; 0: every block", THRESHOLDS),
        default=0,
        word="lazy_{}",
        bind=RESCALE,
    )

    prefix: ClassVar[str] = "hopper_wide"
    name_tile: ClassVar[str] = "{dtype}_d{d_head}_v{d_v}"

    def rules(self, arch: Arch) -> Iterator[Violation]:
        yield from not_hopper(arch, "a config of wide heads")

    @property
    def loaded_columns(self) -> int:
        return self.d_head + self.d_v

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Return the bytes of dynamic shared memory of a CTA: Q, K, V, the P of both warpgroups,
        and what threads exchange."""
        of_keys = self.B_c * (self.d_head + self.d_v)
        of_rows = self.B_r * (self.d_head + HALVES * self.B_c)
        return (of_keys + of_rows) * elem_size + AFTER_TILES
