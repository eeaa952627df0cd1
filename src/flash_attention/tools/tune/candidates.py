# SPDX-License-Identifier: Apache-2.0
"""Which configs are tried at a problem: a space, steps from the best, what neighbours found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from flash_attention.arch import Arch
from flash_attention.choose.dense import DenseProblem
from flash_attention.choose.heuristic import select_config
from flash_attention.families.config import KernelConfig
from flash_attention.families.registry import family_of
from flash_attention.kernel_configs import get_autotuning_kernel_configs


def heuristic(problem: DenseProblem, arch: Arch) -> KernelConfig:
    """What is chosen when nothing was measured."""
    return select_config(problem.problem, arch)


@cache
def _whole_space(arch: Arch) -> Sequence[KernelConfig]:
    return get_autotuning_kernel_configs(arch)


def starting_points(problem: DenseProblem, arch: Arch) -> list[KernelConfig]:
    """The configs of the space of the heuristic's family that suit the problem, its own first."""
    first = heuristic(problem, arch)
    family = family_of(first)
    found = [
        family.fitted(config, problem.problem)
        for config in _whole_space(arch)
        if type(config) is type(first)
        and (config.dtype, config.d_head) == (first.dtype, first.d_head)
        and family.suits(config, problem.problem)
    ]
    return list(dict.fromkeys((first, *neighbours(first, problem), *found)))


def neighbours(config: KernelConfig, problem: DenseProblem) -> list[KernelConfig]:
    """One step away from a config, as far as it suits the problem."""
    family = family_of(config)
    return [near for near in family.neighbours(config) if family.suits(near, problem.problem)]


def carried_over(
    configs: Iterable[KernelConfig], source: DenseProblem, problem: DenseProblem
) -> list[KernelConfig]:
    """The best configs of a problem of the same kind, with the numbers that this one's size asks
    for."""
    carried = (family_of(c).fitted(c, problem.problem, source.problem) for c in configs)
    return list(dict.fromkeys(carried))
