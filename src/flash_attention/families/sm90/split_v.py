# SPDX-License-Identifier: Apache-2.0
"""SplitVConfig: what configs have in common whose two warpgroups share the rows
of a tile and split the columns of V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flash_attention.arch import MEASURED_ARCH, WARP_SIZE, Arch
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.config import KernelConfig
from flash_attention.families.fields import variant
from flash_attention.families.sm90.forward.config import (
    BARRIER_BYTES,
    TARGET,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
)

HALVES = 2  # of O's columns, one for each of the warpgroups that compute
BLOCK_KEYS = 64
PANEL_COLUMNS = 64  # of a shared-memory tile
EXCHANGE_BYTES = 16  # a maximum and a sum of two rows, which a thread shows the other warpgroup
AFTER_TILES = BARRIER_BYTES + HALVES * WARPGROUP_THREADS * EXCHANGE_BYTES
"""The bytes of shared memory that follow the tiles."""
THRESHOLDS = range(16)  # of rescaling: P up to 2^t, and fp16 ends at 2^16
RESCALE = variant("Rescale", "attn/rescale", off="EveryBlock", on="Lazy")


@dataclass(frozen=True, order=True)
class SplitVConfig(KernelConfig):
    """The config of a kernel whose O is too wide for one warpgroup. Two share 64 rows, and each has
    half of the columns of O. A third one loads."""

    oldest_arch: ClassVar[Arch] = MEASURED_ARCH

    if TYPE_CHECKING:  # fields of every such config

        @property
        def d_v(self) -> int: ...

    def target(self, arch: Arch) -> str:
        return TARGET

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

    def derived_bindings(self) -> tuple[Binding, ...]:
        producer, consumer = self.register_split
        numbers = {
            "B_c": self.B_c,
            "producer_registers": producer,
            "consumer_registers": consumer,
            "panel_columns": PANEL_COLUMNS,
            "barrier_bytes": BARRIER_BYTES,
            "smem_bytes": self.smem_bytes(),
        }
        return (
            *(Number(name, value) for name, value in numbers.items()),
            Variant("Exponential", "attn/exponential", "FusedExp2"),
        )

    def attn_flop(self, batch: int, heads: int, seq_q: int, seq_k: int | None = None) -> int:
        """FLOP of the two products, whose columns differ."""
        keys = seq_q if seq_k is None else seq_k
        return 2 * batch * heads * seq_q * keys * (self.d_head + self.d_v)
