# SPDX-License-Identifier: Apache-2.0
"""Jobs for a child: one that is well, and the ways not to be."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from flash_attention.choose.dense import DenseProblem
from flash_attention.kernel_configs import HopperForwardKernelConfig, KernelConfig
from flash_attention.tools.tune.child import Note
from flash_attention.tools.tune.timed import TIMING


def double(note: Note, number: int) -> int:
    note("doubling")
    return 2 * number


def process_id(note: Note) -> int:
    return os.getpid()


def slow_but_talking(note: Note, times: int, seconds: float) -> int:
    for i in range(times):
        note(i)
        time.sleep(seconds)
    return times


def pretend_lineup(
    note: Note,
    problem: DenseProblem,
    configs: Sequence[KernelConfig],
    device_index: int,
    repeats: int,
    check: bool,
) -> dict[KernelConfig, float]:
    """A lineup in which single-staged kernels hang and those of 48 keys take the process down."""
    for config in configs:
        note(config.short_form())
        assert isinstance(config, HopperForwardKernelConfig)
        if config.stages == 1:
            time.sleep(3600)
        if config.B_c == 48:
            os._exit(3)
    note(TIMING)
    return {config: 1.0 * repeats for config in configs}


def hang(note: Note) -> None:
    note("kernel 7")
    time.sleep(3600)


def crash(note: Note) -> None:
    note("kernel 8")
    os._exit(3)


def fault(note: Note) -> None:
    note("kernel 9")
    raise RuntimeError("illegal memory access")
