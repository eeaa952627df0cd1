# SPDX-License-Identifier: Apache-2.0
"""Runs every rung that this GPU can once at a small size, for compute-sanitizer:

compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1 \\
    python benchmarks/sanitize.py
compute-sanitizer --tool racecheck --error-exitcode 1 python benchmarks/sanitize.py --hopper

With --hopper only the rungs of that family, of one type and head dimension. API errors are left
out because cuda-bindings asks the driver for functions newer than it.
"""

from __future__ import annotations

import sys

from flash_attention import forward
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig
from flash_attention.ladder import get_ladder
from flash_attention.launch.device import current_arch
from flash_attention.reference.judge import check_output, generate_qkvo

HEADS = 2


def run(dtype: DType, d_head: int, hopper: bool) -> int:
    """Every rung once; how many were wrong."""
    wrong = 0
    q, k, v, o = generate_qkvo(1, 256, HEADS, d_head, dtype, "cuda")
    for rung in get_ladder(dtype, d_head, HEADS):
        other_family = hopper and not isinstance(rung.config, HopperForwardKernelConfig)
        if other_family or rung.config.broken_rule(current_arch()):
            continue
        check = check_output(forward(rung.config, q, k, v, o.fill_(float("nan"))), q, k, v)
        wrong += not check.ok
        print(f"{dtype.name} {d_head:3} {rung.number:2} {rung.name}: {check}", flush=True)
    return wrong


def main() -> int:
    if sys.argv[1:] == ["--hopper"]:
        return min(run(DType.BF16, 64, hopper=True), 1)
    return min(sum(run(dtype, d_head, hopper=False) for dtype in DType for d_head in (64, 128)), 1)


if __name__ == "__main__":
    sys.exit(main())
