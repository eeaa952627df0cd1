# SPDX-License-Identifier: Apache-2.0
"""HopperMlaKernelConfig: the compile-time choices of the sm_90 kernels for MLA decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.sm90.forward.config import PLAIN
from flash_attention.families.sm90.halves import AFTER_TILES, SharedRowsConfig
from flash_attention.families.sm90.mla.rules import first_violation
from flash_attention.families.values import Violation

STAGES = 2  # blocks of K in shared memory
ROTARY_COLUMNS = 64  # of K, after those of V


@dataclass(frozen=True, order=True)
class HopperMlaKernelConfig(SharedRowsConfig):
    """The config of one sm_90 kernel (H100, H200) for MLA decoding. Every field changes what is
    compiled.

    q and k have d_v + 64 columns. All heads of q share one head of k, whose first d_v columns are
    v. Two warpgroups share 64 rows, and each has half of the columns of O. A third one loads K.
    """

    dtype: DType  # the element type
    d_v: int  # the columns of v, which k has too
    rescale_threshold: int = 0  # rescale O if a maximum grew by over 2^t; 0: every block
    rotary_in_registers: bool = False  # the rotary columns of Q; otherwise every product reads them
    defer_values: bool = False  # a warpgroup's own P V waits until the next scores are computed

    prefix: ClassVar[str] = "hopper_mla"

    def first_violation(self, arch: Arch) -> Violation | None:
        return first_violation(self, arch)

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

    def bindings(self) -> tuple[Binding, ...]:
        schedule = "ValuesDeferred" if self.defer_values else "ValuesFirst"
        return (
            *super().bindings(),
            Number("rotary_in_registers", int(self.rotary_in_registers)),
            Variant("Schedule", "sm90/mla/schedule", schedule),
        )

    def kernel_name(self) -> str:
        """Return a name for folders and logs, of letters, digits and underscores."""
        return "_".join((self.prefix, f"{self.dtype.name.lower()}_v{self.d_v}", *self.words()))

    def tile(self) -> tuple[int | str, ...]:
        return self.dtype.name, self.d_v

    def words(self) -> list[str]:
        tokens = (
            self.rescale_threshold and f"lazy_{self.rescale_threshold}",
            self.rotary_in_registers and "rotary_in_registers",
            self.defer_values and "defer_values",
        )
        return [token for token in tokens if token] or [PLAIN]
