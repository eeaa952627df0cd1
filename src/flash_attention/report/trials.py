# SPDX-License-Identifier: Apache-2.0
"""Timings of many configs at the same points, from a tuner's store or a grid with candidates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flash_attention.bench.stored import CANDIDATES, TIMINGS, Stored

_LENGTHS = ("seq_len", "seq_q", "seq")
_DIMENSIONS = ("d_head", "d")

Point = tuple[int, bool, int, str]
"""Head dimension, causal, rows, and whatever else tells two points apart."""


@dataclass(frozen=True)
class Trial:
    """One config at one point."""

    config: str
    ms: float
    chosen: bool  # what is run if nobody asks for another


def trials_of(stored: Iterable[Stored]) -> tuple[dict[Point, list[Trial]], tuple[str, ...]]:
    """Trials by point, and the files they are from. A tuner's timings go before a grid's."""
    files = list(stored)
    for kind in (TIMINGS, CANDIDATES):
        found = [one for one in files if one.kind == kind]
        points: dict[Point, dict[str, Trial]] = {}
        for one in found:
            for row in one.record["rows"]:
                if _is_time(row.get("ms")):
                    trial = Trial(row["config"], row["ms"], bool(row.get("selected", False)))
                    # a later line of a store is the longer measurement
                    points.setdefault(_point(row.get("point", row)), {})[trial.config] = trial
        several = {point: list(by.values()) for point, by in points.items() if len(by) > 1}
        if several:
            names = tuple(one.path.name for one in found)
            return dict(sorted(several.items())), names
    return {}, ()


def best(trials: Sequence[Trial]) -> Trial:
    """The fastest; of equals the first by name."""
    return min(trials, key=lambda trial: (trial.ms, trial.config))


def _point(given: Mapping[str, Any]) -> Point:
    length = next((given[name] for name in _LENGTHS if name in given), 0)
    d_head = next((given[name] for name in _DIMENSIONS if name in given), 0)
    rest = [f"{name} {given[name]}" for name in ("dtype", "batch", "heads") if name in given]
    return int(d_head), bool(given.get("causal", False)), int(length), ", ".join(rest)


def _is_time(ms: object) -> bool:
    return isinstance(ms, int | float) and math.isfinite(ms) and ms > 0
