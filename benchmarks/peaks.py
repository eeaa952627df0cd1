# SPDX-License-Identifier: Apache-2.0
"""What torch reaches on this GPU in a product of matrices and in a copy, as a results file:

python benchmarks/peaks.py results/h200_peaks.json
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from flash_attention.files import write_record
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.timing import Contender, time_in_turn

SIZE = 8192  # of square matrices
COPIED = 2 << 30  # bytes, read once and written once
REPEATS = 50


def main() -> None:
    device = torch.device("cuda")
    left, right, product = torch.randn(3, SIZE, SIZE, device=device, dtype=torch.bfloat16)
    source = torch.randint(0, 256, (COPIED,), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)

    def check(name: str, output: torch.Tensor) -> None:
        if name == "copy":
            assert torch.equal(output, source)
        else:
            row = (left[0].double() @ right.double()).float()
            torch.testing.assert_close(output[0].float(), row, rtol=1e-2, atol=1.0)

    times = time_in_turn(
        [
            Contender("product", lambda: torch.mm(left, right, out=product), product.zero_),
            Contender("copy", lambda: target.copy_(source), target.zero_),
        ],
        device=device,
        repeats=REPEATS,
        check=check,
    )
    peak = {
        "bf16_matmul_tflops": 2 * SIZE**3 / times["product"].median_ms * 1e-9,
        "copy_tb_s": 2 * COPIED / times["copy"].median_ms * 1e-9,
    }
    command = f"python benchmarks/peaks.py {sys.argv[1]}"
    record = describe() | {"command": command, "peak": peak}
    write_record(Path(sys.argv[1]), record)
    print(peak)


if __name__ == "__main__":
    main()
