# SPDX-License-Identifier: Apache-2.0
"""Which configs are tried at a problem: a space, steps from the best, what neighbours found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.choose.dense import DenseProblem
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import UnsupportedError
from flash_attention.families.config import KernelConfig
from flash_attention.families.registry import FAMILIES, AnyFamily, family_of
from flash_attention.families.values import Violation
from flash_attention.kernel_configs import SET_VARIABLE, chosen_set, get_kernel_configs

AUTOTUNE = "autotune"  # the set of kernels that are the search spaces
LADDER_ONLY = "progression"  # the set of kernels that is tried as it is


def heuristic(problem: DenseProblem, arch: Arch, family: AnyFamily | None = None) -> KernelConfig:
    """What is chosen when nothing was measured; of a family, if one is given."""
    if family is None:
        return select_config(problem.problem, arch)
    config = family.heuristic(problem.problem, arch)
    if isinstance(config, str):
        raise UnsupportedError(f"the family {family.name} has no kernel for {problem}: {config}")
    chosen: KernelConfig = config
    return chosen


@dataclass(frozen=True)
class Space:
    """The configs of a family for a data type and a head dimension, and how many combinations of
    their fields' values fell to which rule."""

    configs: tuple[KernelConfig, ...]
    fallen: Mapping[str, int]

    def __str__(self) -> str:
        combined = len(self.configs) + sum(self.fallen.values())
        by_size = sorted(self.fallen.items(), key=lambda item: -item[1])
        rules = "".join(f", {count:,} fall to the rule {rule}" for rule, count in by_size)
        return f"{combined:,} combinations{rules}, {len(self.configs):,} are left"


def space_of(like: KernelConfig, arch: Arch) -> Space:
    """What is tried where the heuristic chooses `like`: the set $FLASH_ATTENTION_KERNELS names, or
    the search space of its family."""
    return _space(type(like), like.dtype, like.d_head, arch, chosen_set() or AUTOTUNE)


@cache
def _space(kind: type[KernelConfig], dtype: DType, d_head: int, arch: Arch, set_name: str) -> Space:
    family = next(family for family in FAMILIES if family.config_type is kind)
    if set_name != AUTOTUNE:
        named = get_kernel_configs(set_name, arch, family.pass_)
        mine = [c for c in named if type(c) is kind and (c.dtype, c.d_head) == (dtype, d_head)]
        return Space(tuple(mine), {})
    configs: list[KernelConfig] = []
    fallen: Counter[str] = Counter()
    for one in family.combinations(dtype, d_head):
        if isinstance(one, Violation):
            fallen[one.rule] += 1
        elif broken := one.broken_rule(arch):
            fallen[broken.rule] += 1
        else:
            configs.append(one)
    return Space(tuple(configs), fallen)


def starting_points(
    problem: DenseProblem, arch: Arch, family: AnyFamily | None = None, most: int | None = None
) -> list[KernelConfig]:
    """What suits the problem of the space of the heuristic's family, or of the one given; the
    heuristic's choice first, and no more than `most`."""
    first = heuristic(problem, arch, family)
    own = family_of(first)
    fitted = (
        own.fitted(config, problem.problem)
        for config in space_of(first, arch).configs
        if own.suits(config, problem.problem)
    )
    found = own.likeliest_first(first, fitted)
    return list(dict.fromkeys((first, *neighbours(first, problem), *found)))[:most]


def check_candidates(problem: DenseProblem, arch: Arch, family: AnyFamily | None = None) -> None:
    """Raise UnsupportedError if there are configs to try, and none of them suits the problem."""
    first = heuristic(problem, arch, family)
    others = [config for config in space_of(first, arch).configs if config != first]
    if others and starting_points(problem, arch, family) == [first]:
        raise UnsupportedError(
            f"none of the {len(others)} kernels of the set {chosen_set() or AUTOTUNE} suits"
            f" {problem}, so that there is nothing to compare the heuristic's choice with; set"
            f" {SET_VARIABLE} to {AUTOTUNE}, or leave it unset"
        )


def neighbours(config: KernelConfig, problem: DenseProblem) -> list[KernelConfig]:
    """One step away from a config, as far as it suits the problem; none where the ladder is all
    that is asked for."""
    if chosen_set() == LADDER_ONLY:
        return []
    family = family_of(config)
    return [near for near in family.neighbours(config) if family.suits(near, problem.problem)]


def carried_over(
    configs: Iterable[KernelConfig], source: DenseProblem, problem: DenseProblem
) -> list[KernelConfig]:
    """The best configs of a problem of the same kind, with the numbers that this one's size asks
    for."""
    carried = (family_of(c).fitted(c, problem.problem, source.problem) for c in configs)
    return list(dict.fromkeys(carried))
