# SPDX-License-Identifier: Apache-2.0
"""The kernel for decoding that runs beside another one in a mixed step of a serving engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.choose.choice import Choice
from flash_attention.kernel_configs import KernelConfig
from flash_attention_workbench.explain.refusals import rule_of


@dataclass(frozen=True)
class Decoding:
    """The kernel of the sequences with few queries, if another one computes the others."""

    most_queries: int  # of these sequences
    config: KernelConfig
    rule: str  # what chose the config
    features: tuple[str, ...]  # what the kernel does besides plain attention
    num_splits: int  # KV splits of all tiles
    tiles: int  # of query rows; an upper bound

    @classmethod
    def of(cls, choice: Choice, problem: Problem, views: Sequence[TensorView]) -> Decoding | None:
        """Describe the kernel, if the choice has one."""
        chosen = choice.decoding
        if chosen is None:
            return None
        few, _ = problem.shared(choice.few)
        recipe = chosen.recipe(few, views)
        return cls(
            *(choice.few, chosen.config, rule_of(chosen, few), tuple(recipe.features.words())),
            num_splits=recipe.num_splits,
            tiles=recipe.tiles,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the kernel as a dictionary for JSON."""
        tile = (self.config.B_r, self.config.B_c)
        return asdict(self) | {"config": self.config.short_form(), "tile": tile}
