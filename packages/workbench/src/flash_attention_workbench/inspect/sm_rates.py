# SPDX-License-Identifier: Apache-2.0
"""What the units of one multiprocessor do in a clock, and how many clocks work takes there.

Arithmetic rates are those of the CUDA programming guide's table of instruction throughput, tensor
cores those of the whitepapers on the A100 and the H100, dense and with float32 sums. Where products
of one architecture differ, a rate is None. That of sm_90 is wgmma's; mma.sync does not reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TENSOR_CORES = "tensor cores"
ISSUE_SLOTS = 4  # one for each scheduler
SPECIAL_FUNCTIONS = 16
SHARED_BYTES = 128  # 32 banks of 4


@dataclass(frozen=True)
class SmRates:
    """Of one architecture, in a clock."""

    fp32: int  # results
    tensor_flop: int | None


RATES: Mapping[str, SmRates] = {
    "sm_80": SmRates(64, 2048),
    "sm_90": SmRates(128, 4096),
    **dict.fromkeys(
        ("sm_86", "sm_87", "sm_89", "sm_100", "sm_103", "sm_120", "sm_121"), SmRates(128, None)
    ),
}


@dataclass(frozen=True)
class Roof:
    """A GPU by its data sheet: 16-bit tensor cores with float32 sums, and memory."""

    name: str
    tflops: float
    gigabytes: float  # a second

    @property
    def ridge(self) -> float:
        """FLOP that must be done with a byte from memory to keep the tensor cores busy."""
        return 1e3 * self.tflops / self.gigabytes


ROOFS: Mapping[str, Roof] = {
    "sm_80": Roof("A100 SXM 80 GB", 312, 2039),
    "sm_90": Roof("H200 SXM", 989, 4800),
}


@dataclass(frozen=True)
class Work:
    """What a key block asks of a multiprocessor, all warps together."""

    tensor_flop: float  # of 16-bit products; those of 8 bits take half the clocks and count half
    special_functions: float  # of lanes
    fp32: float  # of lanes
    shared_bytes: float
    instructions: float  # of warps

    def clocks(self, rates: SmRates) -> dict[str, float]:
        """How long each unit is busy, were it alone."""
        units = {
            "special functions": self.special_functions / SPECIAL_FUNCTIONS,
            "fp32 lanes": self.fp32 / rates.fp32,
            "shared memory": self.shared_bytes / SHARED_BYTES,
            "issue slots": self.instructions / ISSUE_SLOTS,
        }
        if rates.tensor_flop is None:
            return units
        return {TENSOR_CORES: self.tensor_flop / rates.tensor_flop, **units}
