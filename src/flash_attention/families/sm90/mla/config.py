# SPDX-License-Identifier: Apache-2.0
"""HopperMlaKernelConfig: the compile-time choices of the sm_90 kernels for MLA decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flash_attention.arch import MEASURED_ARCH, WARP_SIZE, Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.config import KernelConfig
from flash_attention.families.sm90.forward.config import (
    BARRIER_BYTES,
    PLAIN,
    TARGET,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
)
from flash_attention.families.sm90.mla.rules import first_violation
from flash_attention.families.values import Violation

HALVES = 2  # of O's columns, one for each of the warpgroups that compute
STAGES = 2  # blocks of K in shared memory
BLOCK_KEYS = 64
ROTARY_COLUMNS = 64  # of K, after those of V
PANEL_COLUMNS = 64  # of a shared-memory tile
EXCHANGE_BYTES = 16  # a maximum and a sum of two rows, which a thread shows the other warpgroup


@dataclass(frozen=True, order=True)
class HopperMlaKernelConfig(KernelConfig):
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

    oldest_arch: ClassVar[Arch] = MEASURED_ARCH
    prefix: ClassVar[str] = "hopper_mla"

    def first_violation(self, arch: Arch) -> Violation | None:
        return first_violation(self, arch)

    def target(self, arch: Arch) -> str:
        return TARGET

    @property
    def d_head(self) -> int:
        """The columns of q and k."""
        return self.d_v + ROTARY_COLUMNS

    @property
    def B_r(self) -> int:
        """The number of query rows of a CTA."""
        return WARPGROUP_ROWS

    @property
    def B_c(self) -> int:
        """The keys of a key block."""
        return BLOCK_KEYS

    @property
    def visits_descending(self) -> bool:
        return True

    @property
    def value_columns(self) -> int:
        return self.d_v

    @property
    def v_in_k(self) -> bool:
        return True

    @property
    def num_threads(self) -> int:
        return WARPGROUP_THREADS * (HALVES + 1)

    @property
    def computing_warps(self) -> int:
        """The number of warps that compute, without the producer's."""
        return WARPGROUP_THREADS // WARP_SIZE * HALVES

    @property
    def register_split(self) -> tuple[int, int]:
        """The registers of a producer's and of a consumer's thread after setmaxnreg."""
        return 40, 232

    @property
    def register_facts(self) -> dict[str, int]:
        producer, consumer = self.register_split
        return {"registers of a producer": producer, "registers of a consumer": consumer}

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Return the bytes of dynamic shared memory of a CTA: Q, K, and what threads exchange."""
        rows = self.B_r + STAGES * self.B_c
        exchange = HALVES * WARPGROUP_THREADS * EXCHANGE_BYTES
        return rows * self.d_head * elem_size + BARRIER_BYTES + exchange

    def bindings(self) -> tuple[Binding, ...]:
        producer, consumer = self.register_split
        numbers = {
            "d_head": self.d_head,
            "d_v": self.d_v,
            "B_c": self.B_c,
            "rotary_in_registers": int(self.rotary_in_registers),
            "producer_registers": producer,
            "consumer_registers": consumer,
            "panel_columns": PANEL_COLUMNS,
            "barrier_bytes": BARRIER_BYTES,
            "smem_bytes": self.smem_bytes(),
        }
        rescale = (
            Variant("Rescale", "attn/rescale", "Lazy", self.rescale_threshold)
            if self.rescale_threshold
            else Variant("Rescale", "attn/rescale", "EveryBlock")
        )
        schedule = "ValuesDeferred" if self.defer_values else "ValuesFirst"
        return (
            dtype_binding(self.dtype),
            *(Number(name, value) for name, value in numbers.items()),
            Variant("Schedule", "sm90/mla/schedule", schedule),
            rescale,
            Variant("Exponential", "attn/exponential", "FusedExp2"),
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

    def attn_flop(self, batch: int, heads: int, seq_q: int, seq_k: int | None = None) -> int:
        """FLOP of the two products, of which one has fewer columns."""
        keys = seq_q if seq_k is None else seq_k
        return 2 * batch * heads * seq_q * keys * (self.d_head + self.d_v)
