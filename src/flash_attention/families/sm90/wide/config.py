# SPDX-License-Identifier: Apache-2.0
"""HopperWideKernelConfig: the compile-time choices of the sm_90 kernels for wide heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.families.sm90.forward.config import PLAIN
from flash_attention.families.sm90.halves import AFTER_TILES, HALVES, SharedRowsConfig
from flash_attention.families.sm90.wide.rules import first_violation
from flash_attention.families.values import Violation


@dataclass(frozen=True, order=True)
class HopperWideKernelConfig(SharedRowsConfig):
    """The config of one sm_90 kernel (H100, H200) for head dimensions up to 512. Every field
    changes what is compiled.

    Two warpgroups share 64 rows, and each has half of the columns of O. They compute the scores of
    alternate key blocks. A third one loads K and V, which have a buffer each.
    """

    dtype: DType  # the element type
    d_head: int  # the columns of q and k
    d_v: int  # the columns of v
    rescale_threshold: int = 0  # rescale O if a maximum grew by over 2^t; 0: every block

    prefix: ClassVar[str] = "hopper_wide"

    def first_violation(self, arch: Arch) -> Violation | None:
        return first_violation(self, arch)

    @property
    def loaded_columns(self) -> int:
        return self.d_head + self.d_v

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Return the bytes of dynamic shared memory of a CTA: Q, K, V, the P of both warpgroups,
        and what threads exchange."""
        of_keys = self.B_c * (self.d_head + self.d_v)
        of_rows = self.B_r * (self.d_head + HALVES * self.B_c)
        return (of_keys + of_rows) * elem_size + AFTER_TILES

    def kernel_name(self) -> str:
        """Return a name for folders and logs, of letters, digits and underscores."""
        tile = f"{self.dtype.name.lower()}_d{self.d_head}_v{self.d_v}"
        return "_".join((self.prefix, tile, *self.words()))

    def tile(self) -> tuple[int | str, ...]:
        return self.dtype.name, self.d_head, self.d_v

    def words(self) -> list[str]:
        return [f"lazy_{self.rescale_threshold}" if self.rescale_threshold else PLAIN]
