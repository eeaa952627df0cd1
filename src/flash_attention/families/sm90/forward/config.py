# SPDX-License-Identifier: Apache-2.0
"""HopperForwardKernelConfig: the compile-time choices of the sm_90 kernels (TMA, wgmma)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flash_attention.arch import MEASURED_ARCH, RESERVED_SMEM_PER_CTA, WARP_SIZE, Arch
from flash_attention.call.dtype import DType, e4m3
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.config import KernelConfig
from flash_attention.families.sm90.forward.rules import first_violation
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.values import Violation

if TYPE_CHECKING:
    import torch

HOPPER = MEASURED_ARCH
TARGET = "sm_90a"  # wgmma and setmaxnreg are not in plain sm_90
WARPGROUP_ROWS = 64  # query rows of one wgmma
WARP_ROWS = 16  # of them, the rows of one warp
WARPGROUP_THREADS = 128
BARRIER_BYTES = 256  # mbarriers and the words of the tile scheduler
LANDING_BARRIER_BYTES = 128  # more mbarriers, if K and V are converted
CONVERTING_WARPS = 3  # of the producer's warpgroup, whose first warp loads


def used_rows(heads_together: int) -> int:
    """Count the rows of a consumer that can hold a query: whole queries, or an equal share of the
    heads of one."""
    if heads_together <= WARPGROUP_ROWS:
        return WARPGROUP_ROWS // heads_together * heads_together
    least = -(-heads_together // WARPGROUP_ROWS)
    return next(
        heads_together // n for n in range(least, heads_together + 1) if heads_together % n == 0
    )


def tile_rows(consumers: int, heads_together: int = 1) -> int:
    """Count the rows of a tile that can hold a query."""
    return used_rows(heads_together) * consumers


@dataclass(frozen=True, order=True)
class HopperForwardKernelConfig(KernelConfig):
    """The config of one sm_90 kernel (H100, H200). Every field changes what is compiled.

    A consumer is a warpgroup that computes 64 query rows. With `specialised`, one more warpgroup,
    the producer, loads K and V ahead of the consumers, into `stages` buffers each.
    """

    dtype: DType  # the element type
    d_head: int  # the head dimension
    consumers: int  # warpgroups that compute, 64 query rows each
    B_c: int  # keys per key block
    stages: int  # buffers of K, and as many of V
    tma: bool = False  # load and store by TMA, else by cp.async and plain stores
    specialised: bool = False  # a producer warpgroup loads for the consumers
    ping_pong: bool = False  # consumers alternate in issuing their matrix products
    overlap: bool = False  # issue Q K^T of the next key block before the softmax of this one
    tile_order: TileOrder = TileOrder.ONE_EACH  # which CTA computes which tile
    group_mib: int = 0  # MiB of K and V that DYNAMIC keeps in L2; 0: those of one head
    own_output: bool = False  # stage O in a separate buffer, so that the next Q loads early
    direct_output: bool = False  # store O from registers, so that the next Q loads early
    rescale_threshold: int = 0  # rescale O if a maximum grew by over 2^t; 0: every block
    narrow_keys: int = 0  # narrower width of a warpgroup's first key block; 0: never narrow
    watch_sums: bool = False  # unmasked blocks keep the old maximum while row sums are small
    prefetch_q: bool = False  # prefetch the next tile's Q into L2
    skip_empty: bool = False  # consumers whose rows hold no query compute nothing
    wide_panels: bool = False  # panels of 64 columns, although 32 would take less shared memory
    kv_8_bit: bool = False  # k and v are e4m3, and warps beside the producer convert them to dtype
    q_8_bit: bool = False  # q is e4m3, too, and they convert it as well

    oldest_arch: ClassVar[Arch] = HOPPER
    prefix: ClassVar[str] = "hopper"

    def first_violation(self, arch: Arch) -> Violation | None:
        return first_violation(self, arch)

    def target(self, arch: Arch) -> str:
        return TARGET

    @property
    def input_dtype(self) -> torch.dtype:
        return e4m3() if self.q_8_bit else self.dtype.to_torch_dtype()

    @property
    def kv_dtype(self) -> torch.dtype:
        return e4m3() if self.kv_8_bit else self.dtype.to_torch_dtype()

    @property
    def B_r(self) -> int:
        """The number of query rows of a CTA."""
        return tile_rows(self.consumers)

    @property
    def visits_descending(self) -> bool:
        """Whether key blocks are visited from the last to the first."""
        return True

    @property
    def num_threads(self) -> int:
        return WARPGROUP_THREADS * (self.consumers + self.specialised)

    @property
    def side_by_side(self) -> int:
        """The number of CTAs meant to share a multiprocessor: 2 with one consumer, if they fit."""
        two = 2 * (self.smem_bytes() + RESERVED_SMEM_PER_CTA) <= HOPPER.smem_per_sm
        return 2 if self.specialised and self.consumers == 1 and two else 1

    @property
    def register_split(self) -> tuple[int, int]:
        """The registers of a producer's and of a consumer's thread after setmaxnreg. Zeros mean
        that setmaxnreg is not used."""
        if self.consumers == 1:
            return (40, 216) if self.side_by_side == 2 else (0, 0)
        return (32, 160) if self.consumers == 3 else (40, 232)

    @property
    def panel_columns(self) -> int:
        """The columns of a panel of a shared-memory tile."""
        return 64 if self.wide_panels else self.tight_panel_columns

    @property
    def tight_panel_columns(self) -> int:
        """The columns of panels that take the least shared memory: 64, or 32 if they hold less."""
        return min((64, 32), key=self._held_columns)

    def _held_columns(self, panel: int) -> int:
        """Return the columns of a row in whole panels."""
        return -(-self.d_head // panel) * panel

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Return the bytes of dynamic shared memory of a CTA: Q, K, V, and O with `own_output`."""
        keys = 2 * self.stages * self.B_c
        rows = self.B_r * (1 + self.own_output) + keys
        landing = keys * self.landing_columns + LANDING_BARRIER_BYTES if self.kv_8_bit else 0
        return rows * self.held_columns * elem_size + BARRIER_BYTES + landing

    @property
    def held_columns(self) -> int:
        """The columns of a row of a shared-memory tile."""
        return self._held_columns(self.panel_columns)

    @property
    def landing_columns(self) -> int:
        """The columns of a row of K or V before it is converted, a byte each."""
        return self.held_columns

    @property
    def computing_warps(self) -> int:
        """The number of warps that compute, without the producer's."""
        return WARPGROUP_THREADS // WARP_SIZE * self.consumers

    @property
    def register_facts(self) -> dict[str, int]:
        if not self.specialised:
            return {}
        producer, consumer = self.register_split
        return {"registers of a producer": producer, "registers of a consumer": consumer}

    def bindings(self) -> tuple[Binding, ...]:
        dtype = dtype_binding(self.dtype)
        tile = (
            Number("d_head", self.d_head),
            Number("consumers", self.consumers),
            Number("B_c", self.B_c),
        )
        copy = Variant("Copy", "sm90/copy", "Tma" if self.tma else "CpAsync")
        exponential = Variant("Exponential", "attn/exponential", "FusedExp2")
        if not self.specialised:
            roles = Variant("Roles", "sm90/roles", "Unified")
            return (dtype, *tile, copy, roles, self._rescale(), exponential)
        roles = Variant("Roles", "sm90/roles", "Converting" if self.kv_8_bit else "Specialised")
        return (dtype, *tile, *self._pipeline(), roles, *self._order(), exponential)

    def _pipeline(self) -> tuple[Number, ...]:
        producer, consumer = self.register_split
        return (
            Number("stages", self.stages),
            Number("group_mib", self.group_mib),
            Number("producer_registers", producer),
            Number("consumer_registers", consumer),
            Number("skip_empty", int(self.skip_empty)),
            Number("converting_warps", CONVERTING_WARPS if self.kv_8_bit else 0),
            Number("convert_queries", int(self.q_8_bit)),
            *(self._landing() if self.kv_8_bit else ()),
        )

    def _landing(self) -> tuple[Number, ...]:
        return (
            Number("landing_columns", self.landing_columns),
            Number("landing_barrier_bytes", LANDING_BARRIER_BYTES),
        )

    def _order(self) -> tuple[Variant, ...]:
        return (
            Variant("Turns", "sm90/turns", "PingPong" if self.ping_pong else "Free"),
            Variant("Schedule", "sm90/schedule", "Overlapped" if self.overlap else "Serial"),
            Variant("FirstBlock", "sm90/first_block", "Narrow", self.narrow_keys)
            if self.narrow_keys
            else Variant("FirstBlock", "sm90/first_block", "Whole"),
            Variant("Queries", "sm90/queries", "Prefetched" if self.prefetch_q else "OnDemand"),
            self._rescale(),
        )

    def _rescale(self) -> Variant:
        if self.rescale_threshold == 0:
            return Variant("Rescale", "attn/rescale", "EveryBlock")
        kind = "Watched" if self.watch_sums else "Lazy"
        return Variant("Rescale", "attn/rescale", kind, self.rescale_threshold)

    def kernel_name(self) -> str:
        """Return a name for folders and logs, of letters, digits and underscores."""
        tile = f"{self.dtype.name.lower()}_d{self.d_head}_{self.B_r}x{self.B_c}_s{self.stages}"
        return "_".join(("hopper", tile, *self.words()))

    def tile(self) -> tuple[int | str, ...]:
        return self.dtype.name, self.d_head, self.consumers, self.B_c, self.stages

    def words(self) -> list[str]:
        order = {
            TileOrder.ONE_EACH: "",
            TileOrder.PERSISTENT: "persistent",
            TileOrder.DYNAMIC: f"dynamic_{self.group_mib}",
        }
        tokens = (
            self.tma and "tma",
            self.specialised and "specialised",
            self.ping_pong and "ping_pong",
            self.overlap and "overlap",
            order[self.tile_order],
            self.own_output and "own_output",
            self.direct_output and "direct_output",
            self.rescale_threshold and f"lazy_{self.rescale_threshold}",
            self.narrow_keys and f"narrow_{self.narrow_keys}",
            self.watch_sums and "watch_sums",
            self.prefetch_q and "prefetch_q",
            self.skip_empty and "skip_empty",
            self.wide_panels and "wide_panels",
            self.kv_8_bit and "kv_8_bit",
            self.q_8_bit and "q_8_bit",
        )
        return [token for token in tokens if token] or [PLAIN]


PLAIN = "plain"
"""The word of the short form if every switch is off."""
