# SPDX-License-Identifier: Apache-2.0
"""Timings of many configs at the same points: a tuner's store or table, or a grid's candidates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flash_attention.bench.stored import CANDIDATES, TIMINGS, Stored

_LENGTHS = ("seq_len", "seq", "seq_q")
_DIMENSIONS = ("d_head", "d")
_MACHINE = ("device", "driver", "nvrtc")

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
        points = _collect(line for one in found for line in _lines(one.record))
        if points:
            return dict(sorted(points.items())), tuple(one.path.name for one in found)
    return {}, ()


def best(trials: Sequence[Trial]) -> Trial:
    """The fastest; of equals the first by name."""
    return min(trials, key=lambda trial: (trial.ms, trial.config))


def _lines(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The lines of a store that are of its last machine; of a table, winners and heuristics."""
    for entry in record.get("entries", ()):
        yield {**entry, "config": entry["heuristic"], "ms": entry["heuristic_ms"]}
        yield {**entry, "selected": True}
    rows = record.get("rows", ())
    for row in rows:
        if all(row.get(fact) == rows[-1].get(fact) for fact in _MACHINE):
            yield row


def _collect(lines: Iterable[Mapping[str, Any]]) -> dict[Point, list[Trial]]:
    """Points with several configs, each with its longest measurement, of equals the last."""
    times: dict[Point, dict[str, tuple[int, float]]] = {}
    chosen: dict[Point, str] = {}
    for line in lines:
        point = _point(line.get("point") or line.get("problem") or line)
        if line.get("kind") == "decision":
            chosen[point] = line["winner"]
        elif _is_time(line.get("ms")):
            here = times.setdefault(point, {})
            timed = (int(line.get("repeats", 0)), float(line["ms"]))
            if line["config"] not in here or timed[0] >= here[line["config"]][0]:
                here[line["config"]] = timed
            if line.get("selected"):
                chosen[point] = line["config"]
    return {
        point: [Trial(name, ms, name == chosen.get(point)) for name, (_, ms) in configs.items()]
        for point, configs in times.items()
        if len(configs) > 1
    }


def _point(given: Mapping[str, Any]) -> Point:
    length = next((given[name] for name in _LENGTHS if given.get(name)), 0)  # seq_q 0: as seq
    d_head = next((given[name] for name in _DIMENSIONS if name in given), 0)
    others = ("dtype", "seq_k", "batch", "heads", "heads_k")
    rest = [f"{name} {given[name]}" for name in others if name in given]
    return int(d_head), bool(given.get("causal", False)), int(length), ", ".join(rest)


def _is_time(ms: object) -> bool:
    return isinstance(ms, int | float) and math.isfinite(ms) and ms > 0
