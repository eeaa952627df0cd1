# SPDX-License-Identifier: Apache-2.0
"""Choice: the config that runs a problem, where it runs, and what chose it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.families.config import KernelConfig
from flash_attention.families.recipe import Recipe, Setting
from flash_attention.families.registry import family_of


class Rule(Enum):
    """What chose a config."""

    GIVEN = "given by the caller"
    BATCH_INVARIANT = "batch invariance"
    DECODE = "decode"
    TABLE = "table"
    HEURISTIC = "heuristic"


@dataclass(frozen=True)
class Choice:
    """A config, the setting that it runs in, which says how keys are split, and why."""

    config: KernelConfig
    setting: Setting
    rule: Rule
    reason: str = field(default="", compare=False)  # why, as far as tables are concerned

    def recipe(self, problem: Problem, views: Sequence[TensorView]) -> Recipe:
        """Return how the config runs the problem. Raises UnsupportedError if it cannot."""
        recipe: Recipe = family_of(self.config).recipe(self.config, problem, views, self.setting)
        return recipe
