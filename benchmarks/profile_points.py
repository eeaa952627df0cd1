# SPDX-License-Identifier: Apache-2.0
"""Nsight Compute's counters of the selected kernel at points of the grid, as a results file:

python benchmarks/profile_points.py results/h200_hopper_profile.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from flash_attention import DType, forward
from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.choose.heuristic import select_config
from flash_attention.files import write_record
from flash_attention.launch.device import current_arch
from flash_attention.reference.judge import generate_qkvo
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.inspect.nsight import METRICS, counters, in_units

TOKENS, HIDDEN = 16384, 2048
POINTS = [
    (d_head, causal, seq)
    for d_head in (64, 128, 256)
    for causal in (False, True)
    for seq in (512, 16384)
]


def run_points() -> None:
    for d_head, causal, seq in POINTS:
        shape = (TOKENS // seq, seq, HIDDEN // d_head, d_head)
        q, k, v, o = generate_qkvo(*shape, DType.BF16, "cuda")
        problem = Problem.of(Call(q, k, v, causal=causal))
        config = select_config(problem, current_arch())
        forward(config, q, k, v, o, causal=causal)
    torch.cuda.synchronize()


def profile() -> list[dict[str, Any]]:
    return [
        {"d": d_head, "causal": causal, "seq": seq} | in_units(counted)
        for (d_head, causal, seq), counted in zip(
            POINTS, counters((__file__, "--run"), METRICS), strict=True
        )
    ]


def main() -> None:
    run_points()
    if sys.argv[1:] == ["--run"]:
        return
    write_record(Path(sys.argv[1]), {**describe(), "rows": profile()})


if __name__ == "__main__":
    main()
