# SPDX-License-Identifier: Apache-2.0
"""The emulator's counters beside Nsight Compute's, for five rungs at one small size:

python benchmarks/counters_against_ncu.py results/h200_emulator_counters.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from flash_attention import DType, emulate, forward
from flash_attention.files import write_record
from flash_attention.ladder import Rung, get_ladder
from flash_attention.launch.device import current_arch
from flash_attention.reference.judge import generate_qkvo
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.inspect.nsight import counters

SHAPE = (1, 256, 2, 128)
RUNGS = (1, 2, 7, 11, 16)
SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
METRICS = {
    "shared read wavefronts": SHARED.format("ld"),
    "shared read conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared write wavefronts": SHARED.format("st"),
    "global load requests": GLOBAL.format("requests", "ld"),
    "global load sectors": GLOBAL.format("sectors", "ld"),
    "global store requests": GLOBAL.format("requests", "st"),
    "global store sectors": GLOBAL.format("sectors", "st"),
}


def rungs() -> list[Rung]:
    ladder = get_ladder(DType.FP16, SHAPE[3], SHAPE[2])
    return [ladder[number - 1] for number in RUNGS]


def run_kernels() -> None:
    q, k, v, o = generate_qkvo(*SHAPE, DType.FP16, "cuda")
    for rung in rungs():
        forward(rung.config, q, k, v, o)
    torch.cuda.synchronize()


def emulated(rung: Rung) -> dict[str, int]:
    q, k, v, _ = generate_qkvo(*SHAPE, DType.FP16)
    emulation = emulate(rung.config, q, k, v, arch=current_arch().name)
    counted = emulation.counters.to_dict()

    def total(where: str, opcodes: tuple[str, ...], what: str) -> int:
        sites = (s for s in counted[where] if s["opcode"].startswith(opcodes))
        return sum(site[what] for site in sites)

    return {
        "shared read wavefronts": total("shared", ("ldmatrix", "ld."), "wavefronts"),
        "shared read conflicts": total("shared", ("ldmatrix", "ld."), "conflicts"),
        "shared write wavefronts": total("shared", ("st.",), "wavefronts"),
        "global load requests": total("global", ("cp.async", "ld."), "requests"),
        "global load sectors": total("global", ("cp.async", "ld."), "sectors"),
        "global store requests": total("global", ("st.",), "requests"),
        "global store sectors": total("global", ("st.",), "sectors"),
    }


def main() -> None:
    run_kernels()
    if sys.argv[1:] == ["--run"]:
        return
    rows: list[dict[str, Any]] = [
        {"rung": rung.number, "name": rung.name, "ncu": real, "emulator": emulated(rung)}
        for rung, real in zip(rungs(), counters((__file__, "--run"), METRICS), strict=True)
    ]
    for row in rows:
        differing = {n: (row["ncu"][n], row["emulator"][n]) for n in METRICS}
        differing = {name: pair for name, pair in differing.items() if pair[0] != pair[1]}
        print(f"{row['rung']:2} {row['name']}: {differing or 'all equal'}")
    record = {**describe(), "shape": SHAPE, "rows": rows}
    write_record(Path(sys.argv[1]), record)


if __name__ == "__main__":
    main()
