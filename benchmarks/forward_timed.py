# SPDX-License-Identifier: Apache-2.0
"""The time that `forward_timed` tells beside that of `flash-attention bench`, which agree to 2 %:

python benchmarks/forward_timed.py [results/h200_forward_timed.json]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from statistics import median

import torch

from flash_attention import forward, forward_timed
from flash_attention.files import write_record
from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder
from flash_attention.reference.judge import generate_qkvo
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.timing import Contender, time_in_turn

SHAPES = ((16, 512), (4, 16384))  # batch and rows, of the grid of the ladder
HEADS, D_HEAD = 16, 128
RUNGS = (1, 16, 26)
REPEATS = 25
AGREE = 0.02


def main() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    rows = []
    for batch, seq_len in SHAPES:
        tensors = generate_qkvo(batch, seq_len, HEADS, D_HEAD, DType.FP16, device)
        for number in RUNGS:
            config = get_ladder(DType.FP16, D_HEAD, HEADS)[number - 1].config
            benched = time_in_turn(
                [Contender("bench", partial(forward, config, *tensors))],
                device=device,
                repeats=REPEATS,
                check=lambda name, out: None,
                hot=True,  # what `forward_timed` finds in L2 is what its untimed run left there
            )["bench"].median_ms
            timed = median(forward_timed(config, *tensors)[-1] for _ in range(REPEATS))
            row = {"rung": number, "batch": batch, "seq": seq_len, "bench": benched, "timed": timed}
            rows.append(row | {"apart": timed / benched - 1})
            print(f"rung {number}, {batch} x {seq_len}: bench {benched:.4f} ms, ", end="")
            print(f"forward_timed {timed:.4f} ms, {100 * (timed / benched - 1):+.2f} %")
    if sys.argv[1:]:
        command = f"python benchmarks/forward_timed.py {sys.argv[1]}"
        write_record(Path(sys.argv[1]), describe() | {"command": command, "rows": rows})
    if any(abs(row["apart"]) > AGREE for row in rows):
        sys.exit(f"apart by more than {100 * AGREE:.0f} %")


if __name__ == "__main__":
    main()
