# SPDX-License-Identifier: Apache-2.0
"""Which configs are tried at a problem: a space, steps from the best, what neighbours found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from flash_attention.arch import Arch
from flash_attention.choose.dense import DenseProblem
from flash_attention.choose.heuristic import SHORT, group_mib, select_config
from flash_attention.families.sm90.forward.rules import CHOICES
from flash_attention.families.sm90.forward.space import hopper_neighbours
from flash_attention.kernel_configs import (
    HopperForwardKernelConfig,
    KernelConfig,
    TileOrder,
    get_autotuning_kernel_configs,
)

MAX_GROUP_MIB = CHOICES["group_mib"][-1]


def heuristic(problem: DenseProblem, arch: Arch) -> KernelConfig:
    """What is chosen when nothing was measured."""
    return select_config(problem.problem, arch)


@cache
def _whole_space(arch: Arch) -> Sequence[KernelConfig]:
    return get_autotuning_kernel_configs(arch)


def starting_points(problem: DenseProblem, arch: Arch) -> list[KernelConfig]:
    """The configs of the space of the heuristic's family that suit the problem, its own first."""
    first = heuristic(problem, arch)
    found = [
        _with_group(config, group_mib(problem.problem))
        for config in _whole_space(arch)
        if type(config) is type(first)
        and (config.dtype, config.d_head) == (first.dtype, first.d_head)
        and _suits(config, problem)
    ]
    return list(dict.fromkeys((first, *neighbours(first, problem), *found)))


def neighbours(config: KernelConfig, problem: DenseProblem) -> list[KernelConfig]:
    """One step away from a config, as far as it suits the problem; the space of the first family
    has no outside to step to."""
    if not isinstance(config, HopperForwardKernelConfig):
        return []
    return [near for near in hopper_neighbours(config) if _suits(near, problem)]


def carried_over(
    configs: Iterable[KernelConfig], source: DenseProblem, problem: DenseProblem
) -> list[KernelConfig]:
    """The best configs of a problem of the same kind, with groups of this one's size."""
    before, after = group_mib(source.problem), group_mib(problem.problem)
    carried = []
    for config in configs:
        size = config.group_mib if isinstance(config, HopperForwardKernelConfig) else 0
        carried.append(_with_group(config, min(max(size * after // before, 1), MAX_GROUP_MIB)))
    return list(dict.fromkeys(carried))


def _suits(config: KernelConfig, problem: DenseProblem) -> bool:
    """Causal tiles differ in length, and a static walk loses a third of the GPU to that; without a
    mask no first block is narrow. One consumer is for short queries, and two CTAs side by side."""
    if not isinstance(config, HopperForwardKernelConfig):
        return True
    if config.consumers == 1 and (problem.seq_q > SHORT or config.side_by_side == 1):
        return False
    return config.tile_order is TileOrder.DYNAMIC if problem.causal else config.narrow_keys == 0


def _with_group(config: KernelConfig, size: int) -> KernelConfig:
    if isinstance(config, HopperForwardKernelConfig) and config.tile_order is TileOrder.DYNAMIC:
        return replace(config, group_mib=size)
    return config
