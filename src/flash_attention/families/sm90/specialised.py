# SPDX-License-Identifier: Apache-2.0
"""SpecialisedConfig: what configs of a producer warpgroup and several consumers have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flash_attention.arch import MEASURED_ARCH, WARP_SIZE, Arch
from flash_attention.families.config import KernelConfig
from flash_attention.families.sm90.forward.config import (
    TARGET,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
    tile_rows,
)


@dataclass(frozen=True, order=True)
class SpecialisedConfig(KernelConfig):
    """The config of a kernel in which one warpgroup loads and each of the others computes 64 query
    rows."""

    oldest_arch: ClassVar[Arch] = MEASURED_ARCH
    name_tile: ClassVar[str] = "{dtype}_d{d_head}_{B_r}x{B_c}_s{stages}"

    if TYPE_CHECKING:  # fields of every such config

        @property
        def consumers(self) -> int: ...
        @property
        def register_split(self) -> tuple[int, int]: ...

    def target(self, arch: Arch) -> str:
        return TARGET

    @property
    def B_r(self) -> int:
        """The number of query rows of a CTA."""
        return tile_rows(self.consumers)

    @classmethod
    def _numbers_of_name(cls, numbers: dict[str, int]) -> dict[str, int]:
        return numbers | {"consumers": numbers["B_r"] // WARPGROUP_ROWS}

    @property
    def visits_descending(self) -> bool:
        return True

    @property
    def num_threads(self) -> int:
        return WARPGROUP_THREADS * (self.consumers + 1)

    @property
    def computing_warps(self) -> int:
        """The number of warps that compute, without the producer's."""
        return WARPGROUP_THREADS // WARP_SIZE * self.consumers

    @property
    def register_facts(self) -> dict[str, int]:
        producer, consumer = self.register_split
        return {"registers of a producer": producer, "registers of a consumer": consumer}
