# SPDX-License-Identifier: Apache-2.0
"""The kernels of a benchmark, compiled by all cores before the first is timed."""

from __future__ import annotations

from contextlib import suppress

import torch

from flash_attention.call.tangent_call import TangentProblem
from flash_attention.choose.heuristic import select_config
from flash_attention.choose.tables import choose_from_tables
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Setting
from flash_attention.families.registry import family_of
from flash_attention.launch.device import current_arch, device_sms
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.commands.bench.settings import Settings
from flash_attention_workbench.commands.precompile import Job, precompile
from flash_attention_workbench.cores import usable_cores


def jobs_of(settings: Settings) -> list[Job]:
    """What forward passes of the points need, and calls with tangents. Few queries get their kernel
    when they run: which one it is depends on how many multiprocessors there are."""
    arch, device = current_arch(), torch.cuda.current_device()
    setting = Setting(arch, device_sms(device), device=device)
    jobs: dict[Job, None] = {}
    for point in settings.points:
        problem = point.problem(settings.dtype)
        of_gradients = settings.measured.pass_ is Pass.BACKWARD
        given = () if of_gradients else settings.configs
        configs = [config for config in given if config.d_head == point.d_head]
        problems = [problem]
        if settings.measured is Measured.TANGENT:
            problems.append(TangentProblem.of_pass(problem))
        for each in () if point.decode else problems:
            with suppress(UnsupportedError):  # told when the point is measured
                configs.append(choose_from_tables(each, setting).config)
                configs += [select_config(each, arch)] if settings.heuristic else []
        for config in configs:
            jobs[Job(config, arch, family_of(config).features(config, problem))] = None
    return list(jobs)


def compile_all(settings: Settings) -> None:
    """Fills the compile cache; what fails says so again when it is run."""
    for _ in precompile(jobs_of(settings), usable_cores()):
        pass
