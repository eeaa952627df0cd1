# SPDX-License-Identifier: Apache-2.0
"""A kernel emulated on generated inputs and held to the oracle: the numbers commands print."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from flash_attention.emulation import Emulation, emulate
from flash_attention.kernel_configs import FlashForwardKernelConfig
from flash_attention.testing import Check, Judge, generate_qkvo


class EmulatedProblem:
    """Generated tensors of one shape, and their oracle, for any number of kernels.

    `stored_heads` is how many heads the memory holds side by side; the first `heads` are used. A
    kernel whose row stride is compiled in for many heads can so be run on few.
    """

    def __init__(
        self,
        config: FlashForwardKernelConfig,
        *,
        batch: int,
        seq_len: int,
        heads: int,
        stored_heads: int,
    ) -> None:
        stored = generate_qkvo(batch, seq_len, stored_heads, config.d_head, config.dtype)
        self.q, self.k, self.v, self.o = (tensor[:, :, :heads] for tensor in stored)
        self.judge = Judge(self.q, self.k, self.v)

    def run(self, config: FlashForwardKernelConfig, arch: str, **settings: Any) -> EmulatedKernel:
        """Emulate one kernel; `settings` are those of `emulate`."""
        self.o.fill_(float("nan"))
        emulation = emulate(config, self.q, self.k, self.v, self.o, arch=arch, **settings)
        return EmulatedKernel(config, tuple(self.q.shape), self.judge.check(self.o), emulation)


@dataclass(frozen=True)
class EmulatedKernel:
    """What one emulated kernel did, in the units of the reports."""

    config: FlashForwardKernelConfig
    shape: tuple[int, ...]  # (batch, seq, heads, d_head)
    check: Check
    emulation: Emulation

    @property
    def ok(self) -> bool:
        """Right numbers and nothing found."""
        return self.check.ok and not self.emulation.findings

    @property
    def warp_instructions(self) -> int:
        return self.emulation.counters.instructions.total()

    @property
    def instructions_per_key_block(self) -> float:
        """Warp instructions of a CTA for each key block; what runs once a CTA is shared out."""
        batch, seq_len, heads, _ = self.shape
        blocks = batch * heads * (seq_len // self.config.B_r) * (seq_len // self.config.B_c)
        return self.warp_instructions / blocks

    @property
    def conflict_ways(self) -> float:
        """Wavefronts of shared memory for each one needed; 1 is free of conflicts."""
        sites = self.emulation.counters.shared_sites.values()
        return sum(s.wavefronts for s in sites) / max(1, sum(s.ideal for s in sites))

    @property
    def sectors_per_request(self) -> float:
        """32-byte sectors of global memory a warp's request touches."""
        sites = self.emulation.counters.global_sites.values()
        return sum(s.sectors for s in sites) / max(1, sum(s.requests for s in sites))

    def to_dict(self) -> dict[str, Any]:
        return {
            "config": self.config.short_form(),
            "shape": self.shape,
            "ok": self.ok,
            "check": {**asdict(self.check), "ok": self.check.ok},
            "seconds": self.emulation.seconds,
            "findings": [finding.to_dict() for finding in self.emulation.findings],
            "counters": self.emulation.counters.to_dict(),
        }
