# SPDX-License-Identifier: Apache-2.0
"""Launches one kernel once, for a profiler to watch:

python -m flash_attention_workbench.inspect.launch CONFIG BATCH SEQ HEADS [causal]

A backward kernel comes with a forward pass and the kernels before and after it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from flash_attention.families.passes import Pass
from flash_attention.families.registry import family_of
from flash_attention.kernel_configs import KernelConfig, as_kernel_config
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.gradient_case import GradientCase
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.tangent_case import TangentCase
from flash_attention_workbench.inspect.nsight import KERNELS

CAUSAL = "causal"


def kernels(config: KernelConfig) -> str:
    """What ncu counts: of a backward pass the main kernel."""
    if family_of(config).pass_ is not Pass.BACKWARD:
        return KERNELS
    return f"regex:flash_backward_(kernel_)?{config.kernel_name()}"


def program(config: KernelConfig, shape: tuple[int, int, int], causal: bool) -> list[str]:
    """What Python is to run: this module with its arguments."""
    words = [config.short_form(), *map(str, shape), *([CAUSAL] if causal else [])]
    return ["-m", "flash_attention_workbench.inspect.launch", *words]


def main(arguments: Sequence[str]) -> None:
    form, batch, seq_len, heads, *mask = arguments
    config = as_kernel_config(form, n_heads=int(heads))
    point = Point(config.d_head, mask == [CAUSAL], int(seq_len), int(batch), int(heads))
    pass_ = family_of(config).pass_
    if pass_ is Pass.BACKWARD:
        GradientCase.of(point, config.dtype, Measured.BACKWARD, "cuda").kernel(config).run()
    elif pass_ is Pass.TANGENT:
        TangentCase.of(point, config.dtype, "cuda").contender(form, config).run()
    else:
        Case.of(point, config.dtype, "cuda").kernel(config).run()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1:])
