# SPDX-License-Identifier: Apache-2.0
"""What a results file does not hold of a rung: its idea, its change and its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RungText:
    """A rung in words and code. `diff` is empty for the first one."""

    number: int
    name: str
    idea: str
    change: str
    diff: str
    family: str  # the architecture that its kind of config is for


def newer_family(rungs: Sequence[RungText]) -> set[int]:
    """Numbers of the rungs that are of another family than the first one."""
    return {rung.number for rung in rungs if rung.family != rungs[0].family}
