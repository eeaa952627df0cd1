# SPDX-License-Identifier: Apache-2.0
"""Table: for problems that were tuned on one kind of GPU, the config that was fastest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from flash_attention.choose.dense import DenseProblem
from flash_attention.errors import UnsupportedError
from flash_attention.families.config import KernelConfig


@dataclass(frozen=True)
class Entry:
    """The fastest config of one problem, beside what would have been chosen without measuring."""

    problem: DenseProblem
    config: KernelConfig
    ms: float
    heuristic: str  # its short form: the config of an old table may be gone
    heuristic_ms: float  # in the same turns as `ms`
    when: str  # ISO 8601, UTC
    driver: str
    nvrtc: str
    version: str  # of this package

    @property
    def gain(self) -> float:
        """How many times as fast as the heuristic's choice."""
        return self.heuristic_ms / self.ms

    @property
    def keeps_heuristic(self) -> bool:
        """Whether nothing was faster than the heuristic's choice."""
        return self.config.short_form() == self.heuristic


@dataclass(frozen=True)
class Table:
    """Entries of one kind of GPU, one for a problem."""

    device: str
    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)  # entries that were left out, and why

    @cached_property
    def _by_problem(self) -> dict[DenseProblem, Entry]:
        return {entry.problem: entry for entry in self.entries}

    def exact(self, problem: DenseProblem) -> Entry | None:
        """The entry of this very problem."""
        return self._by_problem.get(problem)

    def nearest(self, problem: DenseProblem) -> tuple[float, Entry] | None:
        """The entry of the problem least apart of the same kind, and how far it is."""
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
        """The table with these in place of what it had for their problems."""
        kept = {**self._by_problem, **{entry.problem: entry for entry in entries}}
        return Table(self.device, tuple(kept[problem] for problem in sorted(kept)), self.notes)

    def merge(self, other: Table) -> Table:
        """Both tables in one; of two entries for a problem the newer wins, of two as new the faster
        one."""
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
        return Table(self.device, tuple(best[problem] for problem in sorted(best)), notes)
