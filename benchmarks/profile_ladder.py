# SPDX-License-Identifier: Apache-2.0
"""Nsight Compute's counters of every rung that this GPU can run, as a results file:

PYTHONPATH=src python benchmarks/profile_ladder.py results/h200_ladder_profile.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from nsight import counters

from flash_attention import DType, forward
from flash_attention.bench.environment import describe
from flash_attention.dispatch import current_arch
from flash_attention.ladder import Rung, get_ladder
from flash_attention.testing import generate_qkvo

SHAPE = (4, 8192, 16, 128)
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
METRICS = {
    "kcycles": "sm__cycles_active.avg",
    "tensor pipe %": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue slots %": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "bank conflicts (millions)": "l1tex__data_bank_conflicts_pipe_lsu.sum",
    "waiting for shared memory": STALL.format("short_scoreboard"),
    "for global memory": STALL.format("long_scoreboard"),
    "at barriers": STALL.format("barrier"),
    "for the math pipe": STALL.format("math_pipe_throttle"),
    "for instructions": STALL.format("no_instruction"),
}
UNITS = {"kcycles": 1e3, "bank conflicts (millions)": 1e6}


def rungs() -> list[Rung]:
    return [rung for rung in get_ladder() if not rung.config.broken_rule(current_arch())]


def run_ladder() -> None:
    q, k, v, o = generate_qkvo(*SHAPE, DType.FP16, "cuda")
    for rung in rungs():
        forward(rung.config, q, k, v, o)
    torch.cuda.synchronize()


def profile() -> list[dict[str, Any]]:
    return [
        {"rung": rung.number, "name": rung.name}
        | {name: value / UNITS.get(name, 1) for name, value in counted.items()}
        for rung, counted in zip(rungs(), counters(__file__, METRICS), strict=True)
    ]


def main() -> None:
    run_ladder()
    if sys.argv[1:] == ["--run"]:
        return
    record = {**describe(), "shape": SHAPE, "rows": profile()}
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
