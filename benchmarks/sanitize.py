# SPDX-License-Identifier: Apache-2.0
"""Runs every rung that this GPU can once at a small size, for compute-sanitizer:

compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1 \\
    python benchmarks/sanitize.py
compute-sanitizer --tool racecheck --error-exitcode 1 python benchmarks/sanitize.py --hopper
compute-sanitizer --tool synccheck --error-exitcode 1 python benchmarks/sanitize.py --backward

With --backward the rungs of the backward pass. With --hopper only the rungs of that family, of one
type and head dimension. API errors are left out because cuda-bindings asks the driver for functions
newer than it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import torch

from flash_attention import attention, forward
from flash_attention.call.backward_call import BackwardCall
from flash_attention.call.call import Call
from flash_attention.families.passes import Pass
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from flash_attention.ladder import Rung, get_ladder
from flash_attention.launch.compute import compute_gradients
from flash_attention.launch.device import current_arch
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention.reference.judge import check_output, generate_qkvo

HEADS, ROWS = 2, 256
OF_SM80 = (FlashForwardKernelConfig, FlashBackwardKernelConfig)


def rungs(dtype: DType, d_head: int, pass_: Pass, hopper: bool) -> Iterator[Rung]:
    """The rungs that this GPU can run."""
    for rung in get_ladder(dtype, d_head, HEADS, pass_):
        skipped = hopper and isinstance(rung.config, OF_SM80)
        if not skipped and not rung.config.broken_rule(current_arch()):
            yield rung


def run_forward(dtype: DType, d_head: int, hopper: bool) -> int:
    """Every rung once; how many were wrong."""
    wrong = 0
    q, k, v, o = generate_qkvo(1, ROWS, HEADS, d_head, dtype, "cuda")
    for rung in rungs(dtype, d_head, Pass.FORWARD, hopper):
        check = check_output(forward(rung.config, q, k, v, o.fill_(float("nan"))), q, k, v)
        wrong += not check.ok
        print(f"{dtype.name} {d_head:3} {rung.number:2} {rung.name}: {check}", flush=True)
    return wrong


def run_backward(dtype: DType, d_head: int, hopper: bool) -> int:
    """The gradients of every rung once; how many were wrong."""
    wrong = 0
    q, k, v, _ = generate_qkvo(1, ROWS, HEADS, d_head, dtype, "cuda")
    o, lse = attention(q, k, v, causal=True, return_lse=True)
    call = BackwardCall(torch.randn_like(o), Call(q, k, v, o, causal=True), lse)
    judge = GradientJudge(call.call, call.do)
    for rung in rungs(dtype, d_head, Pass.BACKWARD, hopper):
        checks = judge.check(compute_gradients(call, rung.config))
        wrong += not all(check.ok for check in checks.values())
        said = ", ".join(f"{name} {check}" for name, check in checks.items())
        print(f"{dtype.name} {d_head:3} {rung.number:2} {rung.name}: {said}", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="run every rung once, for compute-sanitizer")
    parser.add_argument("--backward", action="store_true", help="the rungs of the backward pass")
    parser.add_argument("--hopper", action="store_true", help="only Hopper rungs, BF16, d_head 64")
    options = parser.parse_args()
    run = run_backward if options.backward else run_forward
    if options.hopper:
        return min(run(DType.BF16, 64, hopper=True), 1)
    return min(sum(run(dtype, d_head, hopper=False) for dtype in DType for d_head in (64, 128)), 1)


if __name__ == "__main__":
    sys.exit(main())
