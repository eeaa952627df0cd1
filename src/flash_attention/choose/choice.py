# SPDX-License-Identifier: Apache-2.0
"""Choice: the config that runs a problem, where it runs, and what chose it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.families.config import KernelConfig
from flash_attention.families.recipe import Recipe, Resized, Setting, larger
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
    few: int = 0
    decoding: Choice | None = None  # of the sequences with up to `few` queries, if there are some

    def recipe(self, problem: Problem, views: Sequence[TensorView]) -> Recipe:
        """Return how the config runs the problem. Raises UnsupportedError if it cannot."""
        if self.decoding is not None:
            return self._shared(self.decoding, problem, views)
        recipe: Recipe = family_of(self.config).recipe(self.config, problem, views, self.setting)
        return recipe

    def _shared(self, decoding: Choice, problem: Problem, views: Sequence[TensorView]) -> Recipe:
        few, many = problem.shared(self.few)
        alone = replace(self, decoding=None)
        main, second = alone.recipe(many, views), decoding.recipe(few, views)
        family = family_of(decoding.config)

        def resize(other: Problem) -> Resized | None:
            if main.resize is None or second.resize is None:
                return None
            if family.few_queries(other) != self.few:
                return None
            few, many = other.shared(self.few)
            first, last = main.resize(many), second.resize(few)
            if first is None or last is None:
                return None
            scratch = [
                recipe.scratch if resized.scratch is None else resized.scratch
                for recipe, resized in ((main, first), (second, last))
            ]
            return Resized(first.grids + last.grids, larger(*scratch))

        return main.followed_by(second, resize)
