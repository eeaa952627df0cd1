# SPDX-License-Identifier: Apache-2.0
"""A lineup for a child of a measurer: some kernels hang, some take the process down."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from flash_attention.choose.dense import DenseProblem
from flash_attention.kernel_configs import HopperForwardKernelConfig, KernelConfig
from flash_attention_workbench.child import Note
from flash_attention_workbench.tune.timed import TIMING


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
