# SPDX-License-Identifier: Apache-2.0
"""The config for a problem that was not tuned: the newest family that supports it chooses."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention.arch import Arch
from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.families.config import KernelConfig
from flash_attention.families.registry import AnyFamily, families_for, pass_of


def select_config(
    problem: Problem, arch: Arch, families: Sequence[AnyFamily] | None = None
) -> KernelConfig:
    """Return the heuristic's config for `problem` on `arch`, of the pass that the problem is of.
    The families are asked in order, by default all that are for the problem."""
    reasons: dict[str, None] = {}  # families of one architecture share some
    for family in families_for(problem, pass_of(problem)) if families is None else families:
        chosen: KernelConfig | str = family.heuristic(problem, arch)
        if isinstance(chosen, str):
            reasons[chosen] = None
        else:
            return chosen
    raise UnsupportedError(f"no kernel runs {problem} on {arch.name}: {'; '.join(reasons)}")
