# SPDX-License-Identifier: Apache-2.0
"""What can be known about a rung without running it."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.arch import Arch
from flash_attention.call.features import CAUSAL, PLAIN
from flash_attention.ladder import Rung
from flash_attention.launch.kernels import get_kernel
from flash_attention_workbench.inspect.inspection import Inspection
from flash_attention_workbench.inspect.instructions import InstructionCounts, count_instructions


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RungInspection(Inspection):
    """One rung compiled for one architecture, its instructions counted."""

    rung: Rung
    instructions: InstructionCounts


def inspect_rung(rung: Rung, arch: Arch, causal: bool = False) -> RungInspection:
    """Compiles a rung and counts its instructions."""
    features = CAUSAL if causal else PLAIN
    unit = get_kernel(rung.config, arch, features).unit
    counts = count_instructions(unit.compiled)
    return RungInspection(rung.config, arch, unit, features, rung=rung, instructions=counts)
