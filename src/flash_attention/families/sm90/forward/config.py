# SPDX-License-Identifier: Apache-2.0
"""HopperForwardKernelConfig: the compile-time choices of the sm_90 kernels (TMA, wgmma)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from flash_attention.arch import (
    MEASURED_ARCH,
    REGISTERS_PER_SM,
    REGISTERS_PER_THREAD,
    RESERVED_SMEM_PER_CTA,
    WARP_SIZE,
    Arch,
)
from flash_attention.call.dtype import DType, e4m3
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.config import KernelConfig
from flash_attention.families.fields import (
    Needs,
    as_number,
    choice,
    element_type,
    kernel_config,
    literal,
    number,
    switch,
    variant,
)
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.values import Violation, not_hopper, too_large

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
OTHER_REGISTERS = 32  # row maxima and sums, addresses, descriptors, barrier phases
REGISTER_STEP = 8  # registers of a thread are a multiple of this
D_HEADS = range(16, 257, 16)
MOST_GROUP_MIB = 4096
PRODUCER = Needs("specialised", "is for kernels with a producer", absent=True)


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


@kernel_config
class HopperForwardKernelConfig(KernelConfig):
    """The config of one sm_90 kernel (H100, H200). Every field changes what is compiled.

    A consumer is a warpgroup that computes 64 query rows. With `specialised`, one more warpgroup,
    the producer, loads K and V ahead of the consumers, into `stages` buffers each.
    """

    dtype: DType = element_type("the element type")
    d_head: int = number("the head dimension", D_HEADS)
    consumers: int = number("warpgroups that compute, 64 query rows each", (1, 2, 3))
    B_c: int = number("keys per key block", range(16, 257, 16))
    stages: int = number(
        "buffers of K, and as many of V",
        (1, 2, 3, 4),
        needs=Needs(
            "specialised",
            "are filled by a producer that runs ahead",
            rule="stages_need_specialised",
            absent=True,
        ),
    )
    tma: bool = switch("load and store by TMA, else by cp.async and plain stores", default=False)
    specialised: bool = switch(
        "a producer warpgroup loads for the consumers",
        default=False,
        needs=Needs("tma", "has one thread that loads for all, which only TMA can"),
    )
    ping_pong: bool = switch(
        "consumers alternate in issuing their matrix products",
        default=False,
        bind=variant("PingPong", "sm90/ping_pong", off="Off", on="On"),
        needs=PRODUCER,
    )
    overlap: bool = switch(
        "issue Q K^T of the next key block before the softmax of this one",
        default=False,
        bind=variant("Schedule", "sm90/schedule", off="Serial", on="Overlapped"),
        needs=PRODUCER,
    )
    tile_order: TileOrder = choice(
        "which CTA computes which tile",
        {
            TileOrder.ONE_EACH: "",
            TileOrder.PERSISTENT: "persistent",
            TileOrder.DYNAMIC: "dynamic_{group_mib}",
        },
        default=TileOrder.ONE_EACH,
        needs=PRODUCER,
    )
    group_mib: int = number(
        "MiB of K and V that DYNAMIC keeps in L2; 0: those of one head",
        range(MOST_GROUP_MIB + 1),
        default=0,
        needs=PRODUCER,
    )
    own_output: bool = switch(
        "stage O in a separate buffer, so that the next Q loads early",
        default=False,
        needs=PRODUCER,
    )
    direct_output: bool = switch(
        "store O from registers, so that the next Q loads early", default=False, needs=PRODUCER
    )
    rescale_threshold: int = number(
        "rescale O if a maximum grew by over 2^t; 0: every block",
        range(16),  # P up to 2^t, and fp16 ends at 2^16
        default=0,
        word="lazy_{}",
        bind=None,
        needs=PRODUCER,
    )
    narrow_keys: int = number(
        *("narrower width of a warpgroup's first key block; 0: never narrow", range(0, 256, 16)),
        default=0,
        word="narrow_{}",
        bind=variant("FirstBlock", "sm90/first_block", off="Whole", on="Narrow"),
        needs=PRODUCER,
    )
    stale_max: bool = switch(
        "unmasked blocks keep the old maximum while row sums are small",
        default=False,
        needs=PRODUCER,
    )
    prefetch_q: bool = switch(
        "prefetch the next tile's Q into L2",
        default=False,
        bind=variant("Queries", "sm90/queries", off="OnDemand", on="Prefetched"),
        needs=PRODUCER,
    )
    skip_empty: bool = switch(
        "consumers whose rows hold no query compute nothing",
        default=False,
        bind=as_number(),
        needs=PRODUCER,
    )
    wide_panels: bool = switch(
        "panels of 64 columns, although 32 would take less shared memory",
        default=False,
        needs=PRODUCER,
    )
    kv_8_bit: bool = switch(
        "k and v are e4m3, and warps beside the producer convert them to dtype",
        default=False,
        needs=PRODUCER,
    )
    q_8_bit: bool = switch(
        "q is e4m3, too, and they convert it as well",
        default=False,
        needs=(PRODUCER, Needs("kv_8_bit", "is for k and v of 8 bits")),
    )
    scores_8_bit: bool = switch(
        "products of Q and K have 8 bits, and only V is converted",
        default=False,
        bind=as_number(),
        needs=(PRODUCER, Needs("q_8_bit", "is for q, k and v of 8 bits")),
    )

    oldest_arch: ClassVar[Arch] = HOPPER
    prefix: ClassVar[str] = "hopper"
    name_tile: ClassVar[str] = "{dtype}_d{d_head}_{B_r}x{B_c}_s{stages}"

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

    @classmethod
    def _numbers_of_name(cls, numbers: dict[str, int]) -> dict[str, int]:
        return numbers | {"consumers": numbers["B_r"] // WARPGROUP_ROWS}

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

    @property
    def box_columns(self) -> int:
        """The columns of a box of k and v: a panel, or a whole row if all are converted."""
        if self.scores_8_bit:
            return min((128, 64), key=self._held_columns)
        return self.landing_columns if self.kv_8_bit else self.panel_columns

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Return the bytes of dynamic shared memory of a CTA: Q, K, V, and O with `own_output`."""
        keys = 2 * self.stages * self.B_c
        if self.scores_8_bit:
            of_8_bits = (self.B_r + keys) * self.landing_columns
            return of_8_bits + 2 * self.B_c * self.held_columns * elem_size + BARRIER_BYTES
        rows = self.B_r * (1 + self.own_output) + keys
        landing = keys * self.landing_columns + LANDING_BARRIER_BYTES if self.kv_8_bit else 0
        return rows * self.held_columns * elem_size + BARRIER_BYTES + landing

    @property
    def held_columns(self) -> int:
        """The columns of a row of a shared-memory tile."""
        return self._held_columns(self.panel_columns)

    @property
    def landing_columns(self) -> int:
        """The columns of a row of K or V of 8 bits, a byte each."""
        return self._held_columns(self.box_columns) if self.scores_8_bit else self.held_columns

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

    def derived_bindings(self) -> tuple[Binding, ...]:
        types = (self._rescale(), Variant("Exponential", "attn/exponential", "FusedExp2"))
        if not self.specialised:
            copy = Variant("Copy", "sm90/copy", "Tma" if self.tma else "CpAsync")
            return (copy, Variant("Roles", "sm90/roles", "Unified"), *types)
        producer, consumer = self.register_split
        converts = self.kv_8_bit and not self.scores_8_bit
        numbers = {
            "converting_warps": CONVERTING_WARPS * self.kv_8_bit,
            "convert_queries": int(self.q_8_bit and not self.scores_8_bit),
            "producer_registers": producer,
            "consumer_registers": consumer,
        }
        if converts:
            numbers["landing_columns"] = self.landing_columns
            numbers["landing_barrier_bytes"] = LANDING_BARRIER_BYTES
        of_8_bits = "ScoresOf8Bits" if self.scores_8_bit else "Converting"
        roles = Variant("Roles", "sm90/roles", of_8_bits if self.kv_8_bit else "Specialised")
        return (*(Number(name, value) for name, value in numbers.items()), roles, *types)

    def _rescale(self) -> Variant:
        if self.rescale_threshold == 0:
            return Variant("Rescale", "attn/rescale", "EveryBlock")
        kind = "StaleMax" if self.stale_max else "Lazy"
        return Variant("Rescale", "attn/rescale", kind, self.rescale_threshold)

    def rules(self, arch: Arch) -> Iterator[Violation]:
        yield from not_hopper(arch, "a Hopper config", "a FlashForwardKernelConfig")
        yield from _switches_at_odds(self)
        own = ", or own_output=False" if self.own_output else ""
        yield from too_large(
            *("the buffers of Q, K, V and O", self.smem_bytes(), arch),
            f"use a smaller B_c, fewer stages or consumers{own}",
        )
        if (needed := registers_needed(self)) > (limit := register_limit(self)):
            yield Violation(
                "registers",
                f"the accumulators and P need about {needed} registers a thread, a thread of "
                f"{self.consumers} consumers has {limit}: use a smaller B_c"
                + (" or fewer consumers" if self.consumers == 3 else ""),
            )


def _switches_at_odds(cfg: HopperForwardKernelConfig) -> Iterator[Violation]:
    if cfg.ping_pong and cfg.consumers == 1:
        yield Violation(
            "ping_pong_needs_consumers",
            "ping_pong=True needs a second consumer to alternate with, and consumers=1: "
            "use 2 or 3 consumers or set ping_pong=False",
        )
    if cfg.own_output and cfg.direct_output:
        yield Violation(
            "direct_output",
            "own_output=True has a buffer for O, and direct_output=True stores it from registers:"
            " set one of them to False",
        )
    if cfg.skip_empty and cfg.consumers == 1:
        yield Violation(
            "skip_empty_needs_consumers",
            "skip_empty=True is for a tile whose last consumers have no query, and the only one of"
            " consumers=1 always has: use 2 or 3 consumers or set skip_empty=False",
        )
    if cfg.wide_panels and cfg.tight_panel_columns == cfg.panel_columns:
        yield Violation(
            "wide_panels",
            f"wide_panels=True changes nothing, because panels of d_head={cfg.d_head} have"
            f" {cfg.panel_columns} columns anyway: set wide_panels=False",
        )
    if cfg.kv_8_bit and cfg.consumers == 3:
        yield Violation(
            "kv_8_bit_needs_registers",
            "kv_8_bit=True converts in the producer's warpgroup, which has too few registers beside"
            " consumers=3: use 1 or 2 consumers or set kv_8_bit=False",
        )
    if cfg.scores_8_bit and (cfg.consumers > 1 or cfg.stale_max or cfg.stages % 2):
        yield Violation(
            "scores_8_bit",
            "scores_8_bit=True is for one consumer, V in two buffers of 16 bits, and scores that"
            f" are not computed again; consumers={cfg.consumers}, stages={cfg.stages} and"
            f" stale_max={cfg.stale_max}: set consumers=1, stages=2 or 4 and stale_max=False, or"
            " scores_8_bit=False",
        )
    if cfg.tile_order is not TileOrder.DYNAMIC and cfg.group_mib:
        yield Violation(
            "group_mib",
            f"group_mib={cfg.group_mib} is for tile_order=TileOrder.DYNAMIC, "
            f"this is {literal(cfg.tile_order)}: set group_mib=0",
        )
    if cfg.narrow_keys >= cfg.B_c:
        yield Violation(
            "narrow_keys",
            f"narrow_keys={cfg.narrow_keys}: use 0 (never) or a multiple of 16 below B_c={cfg.B_c}",
        )
    if cfg.stale_max and cfg.rescale_threshold == 0:
        yield Violation(
            "stale_max_needs_threshold",
            "stale_max=True keeps a maximum while sums stay below the rescale threshold: "
            "set rescale_threshold to 1 to 15 or stale_max=False",
        )


def registers_needed(cfg: HopperForwardKernelConfig) -> int:
    """Count the live registers of a consumer's thread: O, S, P in pairs, and the rest."""
    output = cfg.d_head // 2
    scores = cfg.B_c // 2
    return output + scores + scores // 2 + OTHER_REGISTERS


def register_limit(cfg: HopperForwardKernelConfig) -> int:
    """Return the number of registers that a consumer's thread can have."""
    if cfg.specialised and cfg.register_split[1]:
        return cfg.register_split[1]
    share = REGISTERS_PER_SM // cfg.num_threads // REGISTER_STEP * REGISTER_STEP
    return min(share, REGISTERS_PER_THREAD)
