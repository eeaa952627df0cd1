# SPDX-License-Identifier: Apache-2.0
"""HopperBackwardKernelConfig: the compile-time choices of the sm_90 backward kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from flash_attention.arch import MEASURED_ARCH, WARP_SIZE, Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number
from flash_attention.families.config import KernelConfig
from flash_attention.families.fields import (
    choice,
    element_type,
    kernel_config,
    literal,
    number,
    switch,
    variant,
)
from flash_attention.families.sm90.backward.slots import (
    FOLDER,
    Derivative,
    QueryGradient,
    Schedule,
    TileOrder,
    bind,
)
from flash_attention.families.sm90.forward.config import TARGET, WARPGROUP_ROWS, WARPGROUP_THREADS
from flash_attention.families.values import Violation, not_hopper, too_large

BARRIER_BYTES = 512  # mbarriers and the mailbox
FLOAT_BYTES = 4
D_HEADS = (32, 64, 96, 128, 160, 192, 256)
WIDEST_KEYS = 128  # the head dimension up to which a warpgroup has dK and dV of its keys
OTHER_REGISTERS = 24  # addresses, stages and parities; ptxas puts operands of products after these


@kernel_config
class HopperBackwardKernelConfig(KernelConfig):
    """The config of one sm_90 backward kernel (H100, H200). Every field changes what is compiled.

    A CTA has B_c keys of a head of k and v. Key warpgroups with 64 keys each compute dK and dV over
    the blocks of B_r queries that see the keys, which a producer loads into `stages` buffers.
    """

    dtype: DType = element_type("the element type")
    d_head: int = number("the head dimension", D_HEADS)
    B_r: int = number("queries per block", (64, 128))
    B_c: int = number("keys per tile", (64, 128))
    stages: int = number("buffers of Q, and as many of dO", (1, 2, 3, 4))
    query_gradient: QueryGradient = choice(
        "who computes dQ, and how it leaves",
        {each: f"dq_{each.word}" for each in QueryGradient},
        default=QueryGradient.ATOMIC,
        bind=bind,
    )
    ds_stages: int = number(
        *("buffers of dS; 0 if there is no dQ", (0, 1, 2)),
        default=1,
        word="ds_{}",
        always=True,
        bind=None,
    )
    derivative: Derivative = choice(
        "how dS is computed",
        {each: each.word for each in Derivative},
        default=Derivative.EXACT,
        bind=bind,
    )
    schedule: Schedule = choice(
        "the order of the products",
        {each: each.word for each in Schedule},
        default=Schedule.SERIAL,
        bind=bind,
    )
    tile_order: TileOrder = choice(
        "which CTA computes which tile",
        {
            TileOrder.ONE_EACH: "one_each",
            TileOrder.GROUPED: "grouped_{group_heads}",
            TileOrder.DYNAMIC: "dynamic_{group_heads}",
        },
        default=TileOrder.ONE_EACH,
        bind=bind,
    )
    group_heads: int = number(
        "heads of k whose tiles run side by side; 0 with ONE_EACH", range(257), default=0, bind=None
    )
    k_in_registers: bool = switch(
        "S = K Q^T reads K from registers, else from shared memory",
        default=False,
        bind=variant("KeyOperand", f"{FOLDER}/key_operand", off="Shared", on="Registers"),
    )

    oldest_arch: ClassVar[Arch] = MEASURED_ARCH
    prefix: ClassVar[str] = "hopper_backward"
    name_tile: ClassVar[str] = "{dtype}_d{d_head}_{B_r}x{B_c}_s{stages}"

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
    def orders_dq(self) -> bool:
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
    def fills_gaps(self) -> bool:
        """Whether short tiles of many heads come last. Tiles that take turns would wait longer."""
        return self.tile_order is not TileOrder.ONE_EACH and not self.orders_dq

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
            # ptxas needs 64 for 64 columns of dQ, 80 for 96, and 208 for products of 128 columns.
            key = 200 if self.pass_columns == 96 else 208
            producer = 32 if self.orders_dq or self.tile_order is TileOrder.DYNAMIC else 24
            return {"producer": producer, "query": 512 - 2 * key - producer, "key": key}
        return {"producer": 24, "key": 240}

    @property
    def register_facts(self) -> dict[str, int]:
        return {f"registers of a {role} thread": n for role, n in self.registers.items()}

    @property
    def panel_columns(self) -> int:
        """The columns of a panel of a shared-memory tile."""
        return 64 if self.d_head % 64 == 0 else 32

    @property
    def pass_columns(self) -> int:
        """The columns of dQ that a warpgroup computes at a time, for 64 queries."""
        return 64 if self.d_head % 64 == 0 else self.d_head

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

    def derived_bindings(self) -> tuple[Binding, ...]:
        numbers = {
            **({} if self.is_split else self._of_dq()),
            "pass_columns": self.pass_columns,
            **({"group_heads": self.group_heads} if self.group_heads else {}),
            **{f"{role}_registers": count for role, count in self.registers.items()},
            "barrier_bytes": BARRIER_BYTES,
            "smem_bytes": self.smem_bytes(),
        }
        return tuple(Number(name, value) for name, value in numbers.items())

    def _of_dq(self) -> dict[str, int]:
        """What dQ takes: stages of dS, its own shared memory, warps that compute it alone, and a
        warp that takes the turns."""
        warps = WARPGROUP_THREADS // WARP_SIZE if self.own_warpgroup else 0
        return {
            "ds_stages": self.ds_stages,
            "dq_bytes": self.dq_bytes,
            "query_warps": warps,
            "writer_warps": int(self.orders_dq),
        }

    def rules(self, arch: Arch) -> Iterator[Violation]:
        yield from not_hopper(arch, "a Hopper config", "a FlashBackwardKernelConfig")
        yield from _fields_at_odds(self)
        yield from too_large(
            *("the buffers of K, V, Q, dO, dS and gradients", self.smem_bytes(), arch),
            "use a smaller B_r, or fewer stages or ds_stages",
        )
        if self.is_split:
            return
        if (needed := registers_needed(self)) > (limit := self.registers["key"]):
            yield Violation(
                "registers",
                f"the accumulators, P and dS need about {needed} registers a thread, a thread of a"
                f" key warpgroup has {limit}: use a smaller B_r, another derivative than EXACT, or"
                " k_in_registers=False",
            )


SPLIT: dict[str, tuple[object, ...]] = {
    "d_head": tuple(d for d in D_HEADS if d > WIDEST_KEYS),
    "B_r": (64,),
    "B_c": (64,),
    "stages": (2,),
    "query_gradient": (QueryGradient.NONE, QueryGradient.WORKSPACE),
    "ds_stages": (2,),
    "tile_order": (TileOrder.ONE_EACH, TileOrder.GROUPED),
    "k_in_registers": (False,),
}
"""What a kernel with Schedule.SPLIT has, which d_head over 128 needs."""


def _split_fields(cfg: HopperBackwardKernelConfig) -> Iterator[Violation]:
    for name, allowed in SPLIT.items():
        if (value := getattr(cfg, name)) not in allowed:
            said = " or ".join(literal(each) for each in allowed)
            yield Violation(
                "split",
                f"{name}={literal(value)} with schedule=Schedule.SPLIT: use {said}, or another"
                f" schedule for d_head up to {WIDEST_KEYS}",
            )


def _fields_at_odds(cfg: HopperBackwardKernelConfig) -> Iterator[Violation]:
    if (cfg.tile_order is TileOrder.ONE_EACH) != (cfg.group_heads == 0):
        yield Violation(
            "group_heads",
            f"group_heads={cfg.group_heads} with tile_order={literal(cfg.tile_order)}: use 0"
            " with ONE_EACH, and 1 or more with the others",
        )
    if cfg.is_split:
        yield from _split_fields(cfg)
        return
    if cfg.d_head > WIDEST_KEYS or cfg.B_c == 64:
        yield Violation(
            "split",
            f"d_head={cfg.d_head} and B_c={cfg.B_c} with schedule={literal(cfg.schedule)}, whose"
            " warpgroups have the keys of a tile of 128 and their dK and dV: use"
            f" schedule=Schedule.SPLIT for d_head over {WIDEST_KEYS} and B_c 64",
        )
    if (cfg.query_gradient is QueryGradient.NONE) != (cfg.ds_stages == 0):
        yield Violation(
            "ds_stages",
            f"ds_stages={cfg.ds_stages} with query_gradient={literal(cfg.query_gradient)}:"
            " use 0 with NONE, which passes no dS on, and 1 or 2 with the others",
        )
    if cfg.orders_dq and cfg.tile_order is not TileOrder.DYNAMIC:
        yield Violation(
            "turns_need_a_counter",
            f"query_gradient={literal(cfg.query_gradient)} with"
            f" tile_order={literal(cfg.tile_order)}: use TileOrder.DYNAMIC, with which a tile"
            " starts after those that it waits for, whichever CTA starts first",
        )
    by_keys = cfg.query_gradient in (QueryGradient.ATOMIC, QueryGradient.STAGED)
    if by_keys and cfg.B_r // WARPGROUP_ROWS * (cfg.d_head // cfg.pass_columns) < 2:
        yield Violation(
            "shared_query_gradient",
            f"query_gradient={literal(cfg.query_gradient)} gives each key warpgroup"
            f" {WARPGROUP_ROWS} queries and {cfg.pass_columns} columns of dQ, and B_r={cfg.B_r} and"
            f" d_head={cfg.d_head} have enough for one: use B_r=128",
        )
    if cfg.schedule is not Schedule.SERIAL and cfg.stages == 1:
        yield Violation(
            "schedule_needs_stages",
            f"schedule={literal(cfg.schedule)} needs the next Q while this one is in use:"
            " use 2 stages or more, or Schedule.SERIAL",
        )


def registers_needed(cfg: HopperBackwardKernelConfig) -> int:
    """Count the live registers of a key warpgroup's thread: dK, dV, S, P in pairs, P in float32
    if it is kept, K if it is kept, and the rest."""
    scores = cfg.B_r // 2
    exact = scores if cfg.derivative is Derivative.EXACT else 0
    keys = cfg.d_head // 4 if cfg.k_in_registers else 0
    return cfg.d_head + scores + scores // 2 + exact + keys + OTHER_REGISTERS
