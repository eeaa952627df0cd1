# SPDX-License-Identifier: Apache-2.0
"""Runs every rung that this GPU can once at a small size, for compute-sanitizer:

compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1 \\
    python benchmarks/sanitize.py
compute-sanitizer --tool racecheck --error-exitcode 1 python benchmarks/sanitize.py

API errors are left out because cuda-bindings asks the driver for functions newer than it.
"""

from __future__ import annotations

import sys

from flash_attention import forward
from flash_attention.dispatch import current_arch
from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder
from flash_attention.testing import check_output, generate_qkvo

HEADS = 2


def main() -> int:
    wrong = 0
    for dtype in DType:
        for d_head in (64, 128):
            q, k, v, o = generate_qkvo(1, 256, HEADS, d_head, dtype, "cuda")
            for rung in get_ladder(dtype, d_head, HEADS):
                if rung.config.broken_rule(current_arch()):
                    continue
                check = check_output(forward(rung.config, q, k, v, o.fill_(float("nan"))), q, k, v)
                wrong += not check.ok
                print(f"{dtype.name} {d_head:3} {rung.number:2} {rung.name}: {check}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
