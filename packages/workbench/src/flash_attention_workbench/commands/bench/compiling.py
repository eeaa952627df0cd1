# SPDX-License-Identifier: Apache-2.0
"""The kernels of a benchmark, compiled by all cores before the first is timed."""

from __future__ import annotations

import torch

from flash_attention.families.recipe import Setting
from flash_attention.launch.device import current_arch, device_sms
from flash_attention_workbench.bench.kernels import units_of_grid
from flash_attention_workbench.commands.bench.settings import Settings
from flash_attention_workbench.commands.precompile import precompile_units
from flash_attention_workbench.cores import usable_cores


def compile_all(settings: Settings) -> None:
    """Fills the compile cache; what fails says so again when it is run."""
    device = torch.cuda.current_device()
    units = units_of_grid(
        *(settings.points, settings.dtype, settings.measured),
        Setting(current_arch(), device_sms(device), device=device),
        settings.configs,
        heuristic=settings.heuristic,
    )
    for _ in precompile_units(units, usable_cores()):
        pass
