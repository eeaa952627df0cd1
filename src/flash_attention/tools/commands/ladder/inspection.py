# SPDX-License-Identifier: Apache-2.0
"""What can be known about a rung without running it."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.arch import Arch
from flash_attention.call.features import CAUSAL, PLAIN
from flash_attention.ladder import Rung
from flash_attention.launch.kernels import compile_config
from flash_attention.tools.inspect.inspection import Inspection
from flash_attention.tools.inspect.instructions import InstructionCounts, count_instructions


@dataclass(frozen=True)
class RungInspection(Inspection):
    """One rung compiled for one architecture, its instructions counted."""

    rung: Rung
    instructions: InstructionCounts


def inspect_rung(rung: Rung, arch: Arch, causal: bool = False) -> RungInspection:
    """Compiles a rung and counts its instructions."""
    features = CAUSAL if causal else PLAIN
    compiled = compile_config(rung.config, arch, features)
    counts = count_instructions(compiled)
    return RungInspection(rung.config, arch, features, compiled, rung, counts)
