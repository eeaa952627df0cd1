# SPDX-License-Identifier: Apache-2.0
"""Timings of many configs at the same points: a tuner's store or table, or a grid's candidates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flash_attention.call.backward_call import ALL
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.stored import CANDIDATES, GRADIENTS, TIMINGS, Stored

_LENGTHS = ("seq_len", "seq", "seq_q")
_DIMENSIONS = ("d_head", "d")
_MACHINE = ("device", "driver", "nvrtc")


class Point(NamedTuple):
    """Where several configs were timed."""

    d_head: int
    causal: bool
    rows: int
    batch: int
    heads: int
    rest: str  # whatever else tells two points apart
    gradients: str = ""  # of a backward pass, in words


@dataclass(frozen=True)
class Trial:
    """One config at one point."""

    config: str
    ms: float
    chosen: bool  # what is run if nobody asks for another


def trials_of(stored: Iterable[Stored]) -> tuple[dict[Point, list[Trial]], tuple[str, ...]]:
    """Trials by point, first those of the forward pass, and the files they are from. A tuner's
    timings of a pass go before a grid's."""
    files = list(stored)
    points: dict[Point, list[Trial]] = {}
    names: list[str] = []
    for backward in (False, True):
        for kind in (TIMINGS, GRADIENTS if backward else CANDIDATES):
            some = [(one, _lines_of(one, backward)) for one in files if one.kind == kind]
            if found := _collect(line for _, lines in some for line in lines):
                points |= dict(sorted(found.items()))
                names += [one.path.name for one, lines in some if lines]
                break
    return points, tuple(dict.fromkeys(names))


def _lines_of(one: Stored, backward: bool) -> list[Mapping[str, Any]]:
    """The lines of a file that are of a pass."""
    return [line for line in _lines(one.record) if bool(_gradients(line)) == backward]


def _gradients(line: Mapping[str, Any]) -> str:
    """Which gradients a line is of, in words; empty for the forward pass."""
    problem = _problem(line)
    if problem.get("pass") != "backward" and line.get("measured") != Measured.BACKWARD.name:
        return ""
    wanted = problem.get("wanted")
    few = map(str, wanted) if isinstance(wanted, list) and len(wanted) < sum(ALL) else ()
    repeats = ["deterministic"] if problem.get("deterministic") else []
    return " ".join(("backward", *few, *repeats))


def _problem(line: Mapping[str, Any]) -> Mapping[str, Any]:
    problem: Mapping[str, Any] = line.get("point") or line.get("problem") or line
    return problem


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
    """Points with several configs, each with its longest measurement, of equals the last.

    A tuner's GPU grows hot on the way, so its timings count by what they are relative to the
    heuristic's choice of the same turns, and that is always as fast as when it was timed longest.
    """
    times: dict[Point, dict[str, _Timed]] = {}
    chosen: dict[Point, str] = {}
    for line in lines:
        point = _point(line)
        if line.get("kind") == "decision":
            chosen[point] = line["winner"]
        elif _is_time(line.get("ms")):
            here = times.setdefault(point, {})
            timed = _Timed(line.get("repeats", 0), line["ms"], line.get("relative"))
            if line["config"] not in here or timed.repeats >= here[line["config"]].repeats:
                here[line["config"]] = timed
            if line.get("selected"):
                chosen[point] = line["config"]
    return {
        point: list(_trials(configs, chosen.get(point)))
        for point, configs in times.items()
        if len(configs) > 1
    }


class _Timed(NamedTuple):
    repeats: int
    ms: float
    relative: float | None  # to what a tuner timed in the same turns


def _trials(configs: Mapping[str, _Timed], chosen: str | None) -> Iterator[Trial]:
    units = [timed for timed in configs.values() if timed.relative == 1]
    unit = max(units).ms if units else None  # the one with the most repeats
    for name, timed in configs.items():
        ms = timed.ms if timed.relative is None or unit is None else timed.relative * unit
        yield Trial(name, ms, name == chosen)


def _point(line: Mapping[str, Any]) -> Point:
    given = _problem(line)
    length = next((given[name] for name in _LENGTHS if given.get(name)), 0)  # seq_q 0: as seq
    d_head = next((given[name] for name in _DIMENSIONS if name in given), 0)
    rest = [f"{name} {given[name]}" for name in ("dtype", "seq_k", "heads_k") if name in given]
    return Point(
        *(d_head, bool(given.get("causal", False)), length),
        *(given.get("batch", 0), given.get("heads", 0), ", ".join(rest)),
        gradients=_gradients(line),
    )


def _is_time(ms: object) -> bool:
    return isinstance(ms, int | float) and math.isfinite(ms) and ms > 0
