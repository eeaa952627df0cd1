# SPDX-License-Identifier: Apache-2.0
"""Which kernel runs a problem, and by which rule it was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from flash_attention.arch import MEASURED_ARCH, Arch
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.choose.tables import NO_DEVICE, Device, choose
from flash_attention.families.config import KernelConfig
from flash_attention.families.recipe import AnyKvSplits, Recipe, Setting
from flash_attention.families.registry import families_for, family_of, pass_of


class Rule(Enum):
    """What chose a config."""

    GIVEN = "given by the caller"
    DECODE = "decode"
    TABLE = "table"
    HEURISTIC = "heuristic"


@dataclass(frozen=True)
class Decision:
    """A config, its architecture, and how the keys are split, if they are."""

    config: KernelConfig
    arch: Arch
    split: AnyKvSplits
    rule: Rule
    reason: str = field(default="", compare=False)  # why, as far as tables are concerned

    def recipe(
        self,
        problem: Problem,
        views: Sequence[TensorView],
        num_sms: int,
        *,
        return_lse: bool = False,
    ) -> Recipe:
        """Return how the config runs the problem. Raises UnsupportedError if it cannot."""
        setting = Setting(self.arch, num_sms, return_lse, self.split)
        return family_of(self.config).recipe(self.config, problem, views, setting)


@dataclass(frozen=True)
class Where:
    """What a call runs on. `arch` defaults to that of the config, or to Hopper. `device` is the one
    to look up in tables."""

    num_sms: int
    arch: Arch | None = None
    device: Device = NO_DEVICE


def decide(
    problem: Problem,
    where: Where,
    *,
    config: KernelConfig | None = None,
    split_keys: int | None = None,
    may_tune: bool = False,
) -> Decision:
    """Choose the config that runs a checked problem, unless `config` is given.

    With `may_tune` and inside a `tuning` block, the problem may be tuned first.
    """
    if config is not None:
        arch = where.arch or config.default_arch
        config.check(arch)
        split = None if split_keys is None else family_of(config).split(config, problem, split_keys)
        return Decision(config, arch, split, Rule.GIVEN)
    arch = where.arch or MEASURED_ARCH
    for family in families_for(problem, pass_of(problem)):
        short = family.choose_split(problem, arch, where.num_sms, split_keys)
        if not isinstance(short, str):
            return Decision(short[0], arch, short[1], Rule.DECODE)
    choice = choose(problem, arch, where.device, may_tune=may_tune)
    rule = Rule.TABLE if choice.measured else Rule.HEURISTIC
    return Decision(choice.config, arch, None, rule, choice.reason)
