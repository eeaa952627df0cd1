# SPDX-License-Identifier: Apache-2.0
"""Nsight Compute's counters of every rung that this GPU can run, as a results file:

python benchmarks/profile_ladder.py results/h200_ladder_profile.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from flash_attention import DType, forward
from flash_attention.files import write_record
from flash_attention.ladder import Rung, get_ladder
from flash_attention.launch.device import current_arch
from flash_attention.reference.judge import generate_qkvo
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.inspect.nsight import METRICS, counters, in_units

SHAPE = (4, 8192, 16, 128)


def rungs() -> list[Rung]:
    return [rung for rung in get_ladder() if not rung.config.broken_rule(current_arch())]


def run_ladder() -> None:
    q, k, v, o = generate_qkvo(*SHAPE, DType.FP16, "cuda")
    for rung in rungs():
        forward(rung.config, q, k, v, o)
    torch.cuda.synchronize()


def profile() -> list[dict[str, Any]]:
    return [
        {"rung": rung.number, "name": rung.name} | in_units(counted)
        for rung, counted in zip(rungs(), counters((__file__, "--run"), METRICS), strict=True)
    ]


def main() -> None:
    run_ladder()
    if sys.argv[1:] == ["--run"]:
        return
    record = {**describe(), "shape": SHAPE, "rows": profile()}
    write_record(Path(sys.argv[1]), record)


if __name__ == "__main__":
    main()
