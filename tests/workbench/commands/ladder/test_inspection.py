# SPDX-License-Identifier: Apache-2.0
"""Occupancy of a compiled rung, worked out by hand."""

from __future__ import annotations

from flash_attention.arch import ARCHES
from flash_attention.ladder import get_ladder
from flash_attention_workbench.commands.ladder.inspection import inspect_rung


def test_ctas_and_what_limits_them() -> None:
    rung = get_ladder()[1]
    warps = rung.config.num_threads // 32
    for name in ("sm_80", "sm_86"):
        inspection = inspect_rung(rung, ARCHES[name])
        by_smem = ARCHES[name].smem_per_sm // (rung.config.smem_bytes() + 1024)
        per_warp = -(-inspection.registers * 32 // 256) * 256
        by_registers = 65536 // per_warp // warps
        assert inspection.ctas_per_sm == min(by_smem, by_registers)
        assert ("shared memory" in inspection.limited_by) == (by_smem <= by_registers)
        assert ("registers" in inspection.limited_by) == (by_registers <= by_smem)
