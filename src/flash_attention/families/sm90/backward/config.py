# SPDX-License-Identifier: Apache-2.0
"""HopperBackwardKernelConfig: the compile-time choices of the sm_90 backward kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flash_attention.arch import MEASURED_ARCH, WARP_SIZE, Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.config import KernelConfig
from flash_attention.families.sm90.backward.rules import first_violation
from flash_attention.families.sm90.backward.slots import (
    Derivative,
    QueryGradient,
    Schedule,
    Slot,
    TileOrder,
)
from flash_attention.families.sm90.forward.config import TARGET, WARPGROUP_THREADS
from flash_attention.families.values import Violation

BARRIER_BYTES = 512  # mbarriers and the mailbox
FLOAT_BYTES = 4


@dataclass(frozen=True, order=True)
class HopperBackwardKernelConfig(KernelConfig):
    """The config of one sm_90 backward kernel (H100, H200). Every field changes what is compiled.

    A CTA has B_c keys of a head of k and v. Key warpgroups with 64 keys each compute dK and dV over
    the blocks of B_r queries that see the keys, which a producer loads into `stages` buffers.
    """

    dtype: DType  # the element type
    d_head: int  # the head dimension
    B_r: int  # queries per block
    B_c: int  # keys per tile
    stages: int  # buffers of Q, and as many of dO
    query_gradient: QueryGradient = QueryGradient.ATOMIC  # who computes dQ, and how it leaves
    ds_stages: int = 1  # buffers of dS; 0 if there is no dQ
    derivative: Derivative = Derivative.EXACT  # how dS is computed
    schedule: Schedule = Schedule.SERIAL  # the order of the products
    tile_order: TileOrder = TileOrder.ONE_EACH  # which CTA computes which tile
    group_heads: int = 0  # heads of k whose tiles run side by side; 0 with ONE_EACH

    oldest_arch: ClassVar[Arch] = MEASURED_ARCH
    prefix: ClassVar[str] = "hopper_backward"

    def first_violation(self, arch: Arch) -> Violation | None:
        return first_violation(self, arch)

    def target(self, arch: Arch) -> str:
        return TARGET

    @property
    def is_split(self) -> bool:
        """Whether three warpgroups split the products of a tile."""
        return self.schedule is Schedule.SPLIT

    @property
    def own_warpgroup(self) -> bool:
        """Whether dQ has a warpgroup of its own."""
        return self.query_gradient in (QueryGradient.OWN_WARPGROUP, QueryGradient.ORDERED)

    @property
    def takes_turns(self) -> bool:
        """Whether tiles add their shares of dQ in the order of their keys."""
        return self.query_gradient is QueryGradient.ORDERED

    @property
    def adds_dq(self) -> bool:
        """Whether CTAs add their shares of dQ in any order."""
        return self.query_gradient in (
            QueryGradient.ATOMIC,
            QueryGradient.STAGED,
            QueryGradient.OWN_WARPGROUP,
        )

    @property
    def num_threads(self) -> int:
        return WARPGROUP_THREADS * (3 + self.own_warpgroup)

    @property
    def computing_warps(self) -> int:
        """The number of warps that compute, without the producer's."""
        producers = 0 if self.is_split else 1
        return (self.num_threads - producers * WARPGROUP_THREADS) // WARP_SIZE

    @property
    def loop_products(self) -> tuple[int, int]:
        """Those of the key warpgroups, and of a split kernel those of the warpgroup with S and
        dP."""
        if self.is_split:
            return 2, WARPGROUP_THREADS // WARP_SIZE
        own = self.query_gradient in (QueryGradient.ATOMIC, QueryGradient.STAGED)
        return 4 + own, self.B_c // 64 * (WARPGROUP_THREADS // WARP_SIZE)

    @property
    def registers(self) -> dict[str, int]:
        """The registers of a thread of each role after setmaxnreg."""
        if self.is_split:
            return {"score": 184, "gradient": 160}
        if self.own_warpgroup:
            # ptxas needs 64 for the products of dQ, and 208 for those of a key warpgroup.
            producer = 32 if self.takes_turns or self.tile_order is TileOrder.DYNAMIC else 24
            return {"producer": producer, "query": 96 - producer, "key": 208}
        return {"producer": 24, "key": 240}

    @property
    def register_facts(self) -> dict[str, int]:
        return {f"registers of a {role} thread": n for role, n in self.registers.items()}

    @property
    def panel_columns(self) -> int:
        """The columns of a panel of a shared-memory tile."""
        return 64

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Return the bytes of dynamic shared memory of a CTA: K, V, Q, dO, dS, staged dQ and staged
        dV or dK, and two statistics for every query."""
        if self.is_split:  # K shares the buffers of Q, and P goes through shared memory
            rows = (2 + 2 * self.stages) * self.B_r
            pairs = 2 * self.stages * self.B_r * self.B_c
            stats = (1 + 3 * self.stages) * self.B_r * FLOAT_BYTES
            return (rows * self.d_head + pairs) * elem_size + stats + BARRIER_BYTES
        rows = 3 * self.B_c + 2 * self.stages * self.B_r
        ds = self.ds_stages * self.B_r * self.B_c * elem_size
        stats = 2 * self.stages * self.B_r * FLOAT_BYTES
        return rows * self.d_head * elem_size + ds + self.dq_bytes + stats + BARRIER_BYTES

    @property
    def dq_bytes(self) -> int:
        """The bytes of shared memory where dQ is staged."""
        staged = self.own_warpgroup or self.query_gradient is QueryGradient.STAGED
        return self.B_r * self.d_head * FLOAT_BYTES if staged else 0

    def bindings(self) -> tuple[Binding, ...]:
        numbers = {
            "d_head": self.d_head,
            "B_r": self.B_r,
            "B_c": self.B_c,
            "stages": self.stages,
            **({} if self.is_split else self._of_dq()),
            **({"group_heads": self.group_heads} if self.group_heads else {}),
            **{f"{role}_registers": count for role, count in self.registers.items()},
            "barrier_bytes": BARRIER_BYTES,
            "smem_bytes": self.smem_bytes(),
        }
        schedule = () if self.is_split else (self.schedule,)
        slots: tuple[Slot, ...] = (self.query_gradient, self.derivative, *schedule, self.tile_order)
        return (
            dtype_binding(self.dtype),
            *(Number(name, value) for name, value in numbers.items()),
            *(slot.variant for slot in slots),
        )

    def _of_dq(self) -> dict[str, int]:
        """What dQ takes: stages of dS, its own shared memory, warps that compute it alone, and a
        warp that takes the turns."""
        warps = WARPGROUP_THREADS // WARP_SIZE if self.own_warpgroup else 0
        return {
            "ds_stages": self.ds_stages,
            "dq_bytes": self.dq_bytes,
            "query_warps": warps,
            "writer_warps": int(self.takes_turns),
        }

    def kernel_name(self) -> str:
        """Return a name for folders and logs, of letters, digits and underscores."""
        tile = f"{self.dtype.name.lower()}_d{self.d_head}_{self.B_r}x{self.B_c}_s{self.stages}"
        return "_".join((self.prefix, tile, *self.words()))

    def tile(self) -> tuple[int | str, ...]:
        return self.dtype.name, self.d_head, self.B_r, self.B_c, self.stages

    def words(self) -> list[str]:
        order = self.tile_order.word
        return [
            f"dq_{self.query_gradient.word}",
            f"ds_{self.ds_stages}",
            self.derivative.word,
            self.schedule.word,
            f"{order}_{self.group_heads}" if self.group_heads else order,
        ]
