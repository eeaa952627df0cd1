# SPDX-License-Identifier: Apache-2.0
"""The results file of a ladder climbed without a GPU: what compiler and emulator said."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flash_attention.families.registry import family_of
from flash_attention.files import write_record
from flash_attention_workbench.bench.environment import describe_host
from flash_attention_workbench.commands.console import output
from flash_attention_workbench.commands.emulated import EmulatedKernel
from flash_attention_workbench.commands.ladder.inspection import RungInspection


def store(
    inspections: Sequence[RungInspection], kernels: Sequence[EmulatedKernel], path: Path
) -> None:
    """Writes one row a rung, the same bytes for the same machine code and counters."""
    first = kernels[0]
    record = {
        **describe_host(),
        "command": " ".join(["flash-attention", *sys.argv[1:]]),
        "dtype": first.config.dtype.name,
        "shape": first.shape,
        "causal": first.causal,
        "pass_": family_of(first.config).pass_.value,
        "rows": [
            _row(before, inspection, kernel)
            for before, inspection, kernel in zip(
                (None, *inspections), inspections, kernels, strict=False
            )
        ],
    }
    write_record(path, record)
    output.print(f"results: {path}", markup=False, highlight=False)


def _row(
    before: RungInspection | None, here: RungInspection, kernel: EmulatedKernel
) -> dict[str, Any]:
    return {
        "rung": here.rung.number,
        "name": here.rung.name,
        "arch": here.arch.name,
        "registers": here.registers,
        "spilled_bytes": here.spills,
        "shared_bytes": here.rung.config.smem_bytes(),
        "ctas_per_sm": here.ctas_per_sm,
        "limited_by": here.limited_by,
        "same_code": before is not None and before.machine_code == here.machine_code,
        "language": here.instructions.language,
        "opcodes": dict(sorted(here.instructions.opcodes.items())),
        "mix": here.instructions.mix,
        "emulated": {
            "error": kernel.check.error,
            "allowed": kernel.check.allowed,
            "bank conflicts": kernel.counters.conflicts,
            "wavefronts / needed": kernel.conflict_ways,
            "sectors / request": kernel.sectors_per_request,
            "instructions / key block": kernel.instructions_per_key_block,
        },
    }
