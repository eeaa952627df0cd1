# SPDX-License-Identifier: Apache-2.0
"""Table: the fastest config for each problem that was tuned on one model of GPU, in any pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flash_attention.choose.dense import DenseProblem
from flash_attention.errors import UnsupportedError
from flash_attention.families.config import KernelConfig
from flash_attention.records import Positive


@dataclass(frozen=True)
class Entry:
    """The fastest config for one problem, and the heuristic's config to compare it with."""

    problem: DenseProblem
    config: KernelConfig
    ms: Positive  # the time of the config
    heuristic: str  # the short form of its config, which this version may no longer have
    heuristic_ms: Positive  # its time, measured in alternation with `ms`
    when: str  # ISO 8601, UTC
    driver: str
    nvrtc: str
    version: str  # the version of this package

    @property
    def gain(self) -> float:
        """How many times faster the config is than the heuristic's."""
        return self.heuristic_ms / self.ms

    @property
    def keeps_heuristic(self) -> bool:
        """Whether no config was faster than the heuristic's."""
        return self.config.short_form() == self.heuristic


@dataclass(frozen=True)
class Table:
    """The fastest configs on one model of GPU, with one entry per problem."""

    device: str  # the name of the GPU, as torch reports it
    entries: tuple[Entry, ...] = ()  # sorted by pass and problem
    notes: tuple[str, ...] = field(default=(), compare=False)  # why entries were ignored on loading

    @cached_property
    def _by_problem(self) -> dict[DenseProblem, Entry]:
        return {entry.problem: entry for entry in self.entries}

    def exact(self, problem: DenseProblem) -> Entry | None:
        """Return the entry for exactly this problem, or None."""
        return self._by_problem.get(problem)

    def nearest(self, problem: DenseProblem) -> tuple[float, Entry] | None:
        """Return the distance of the nearest entry of the same kind, and that entry. Returns None
        if there is no such entry."""
        apart = [
            (problem.distance(entry.problem), entry.problem, entry)
            for entry in self.entries
            if entry.problem.kind == problem.kind
        ]
        if not apart:
            return None
        distance, _, entry = min(apart, key=lambda item: item[:2])
        return distance, entry

    def with_entries(self, entries: Iterable[Entry]) -> Table:
        """Return a table with these entries added. They replace entries for the same problems."""
        kept = {**self._by_problem, **{entry.problem: entry for entry in entries}}
        return Table(self.device, _in_order(kept), self.notes)

    def merge(self, other: Table) -> Table:
        """Return a table with the entries of both. The newer of two entries for a problem wins, or
        the faster one if both are equally old. Raises UnsupportedError if the devices differ."""
        if other.device != self.device:
            raise UnsupportedError(
                f"a table of {self.device} and one of {other.device} cannot be merged: times of"
                " two GPUs do not compare; keep a file for each"
            )
        best = dict(self._by_problem)
        for entry in other.entries:
            mine = best.get(entry.problem)
            if mine is None or (entry.when, -entry.ms) > (mine.when, -mine.ms):
                best[entry.problem] = entry
        notes = (*self.notes, *other.notes)
        return Table(self.device, _in_order(best), notes)


def _in_order(entries: Mapping[DenseProblem, Entry]) -> tuple[Entry, ...]:
    return tuple(entries[problem] for problem in sorted(entries, key=lambda p: p.sort_key))
