# SPDX-License-Identifier: Apache-2.0
"""The resources of a streaming multiprocessor of each architecture."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.errors import UnsupportedError, quoted

WARP_SIZE = 32
REGISTERS_PER_THREAD = 255
REGISTERS_PER_SM = 65536
REGISTER_ALLOCATION_UNIT = 256  # a warp's registers are a multiple of this
RESERVED_SMEM_PER_CTA = 1024  # bytes that the driver uses of every resident CTA


@dataclass(frozen=True, order=True)
class Arch:
    """The limits of one compute capability, from the CUDA programming guide."""

    name: str
    max_smem_per_cta: int  # bytes, opt-in
    smem_per_sm: int  # bytes
    max_threads_per_sm: int
    max_ctas_per_sm: int

    @property
    def capability(self) -> tuple[int, int]:
        digits = self.name.removeprefix("sm_").rstrip("af")
        return int(digits[:-1]), int(digits[-1])

    def ctas_per_sm(self, *, threads: int, smem_bytes: int, registers: int = 0) -> int:
        """Count the resident CTAs of a kernel. `registers` is per thread, 0 if not known yet."""
        return min(self.occupancy_limits(threads, smem_bytes, registers).values())

    def occupancy_limits(self, threads: int, smem_bytes: int, registers: int) -> dict[str, int]:
        """Count how many CTAs each resource alone would allow."""
        limits = {
            "CTA slots": self.max_ctas_per_sm,
            "threads": self.max_threads_per_sm // threads,
            "shared memory": self.smem_per_sm // (smem_bytes + RESERVED_SMEM_PER_CTA),
        }
        if registers:
            per_warp = -(-registers * WARP_SIZE // REGISTER_ALLOCATION_UNIT)
            warps = REGISTERS_PER_SM // (per_warp * REGISTER_ALLOCATION_UNIT)
            limits["registers"] = warps // (threads // WARP_SIZE)
        return limits


_KIB = 1024
_BIG_AMPERE = (163 * _KIB, 164 * _KIB, 2048, 32)
_HOPPER_SMEM = (227 * _KIB, 228 * _KIB)
_SMALL_SMEM = (99 * _KIB, 100 * _KIB)

ARCHES: dict[str, Arch] = {
    arch.name: arch
    for arch in (
        Arch("sm_80", *_BIG_AMPERE),
        Arch("sm_86", *_SMALL_SMEM, 1536, 16),
        Arch("sm_87", 163 * _KIB, 164 * _KIB, 1536, 16),
        Arch("sm_89", *_SMALL_SMEM, 1536, 24),
        Arch("sm_90", *_HOPPER_SMEM, 2048, 32),
        Arch("sm_100", *_HOPPER_SMEM, 2048, 32),
        Arch("sm_103", *_HOPPER_SMEM, 2048, 32),
        Arch("sm_120", *_SMALL_SMEM, 1536, 24),
        Arch("sm_121", *_SMALL_SMEM, 1536, 24),
    )
}

DEFAULT_ARCH = ARCHES["sm_80"]  # the oldest, if there is no GPU and none is named
ROOMIEST_ARCH = max(ARCHES.values(), key=lambda arch: (arch.max_smem_per_cta, arch.name))
"""The architecture with the most shared memory per CTA."""
MEASURED_ARCH = ARCHES["sm_90"]  # of the GPU whose measurements come with the package


def get_arch(name: str) -> Arch:
    """Return the architecture called `name`, such as "sm_80"."""
    if not isinstance(name, str) or name not in ARCHES:
        raise UnsupportedError(
            f"unknown architecture {quoted(name)}; known are {', '.join(ARCHES)}"
        )
    return ARCHES[name]
