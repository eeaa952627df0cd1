# SPDX-License-Identifier: Apache-2.0
"""Rows of a results file arranged by contender, each beside FlashAttention-2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flash_attention.errors import UnsupportedError
from flash_attention.files import FilePath, naming
from flash_attention_workbench.bench.results import Results, Row, load
from flash_attention_workbench.bench.statistics import harmonic_mean

SHOWN_OPCODES = 8
FA2 = "FA2"
"""The contender everything is compared with: torch's SDPA, its FlashAttention-2 backend."""


@dataclass(frozen=True)
class Entry:
    """One contender over all shapes; `*_of_fa2` are fractions of FA2's speed under the same mask.

    A config that is no rung goes by its tile, and its switches stand for the change.
    """

    name: str
    number: int | None
    change: str
    tflops: tuple[float, ...]
    of_fa2: tuple[float, ...]
    mean_tflops: float
    mean_of_fa2: float
    causal: bool = False
    mixed: bool = False  # other contenders ran under another mask

    @property
    def label(self) -> str:
        """Its name, and its mask where that is not everybody's."""
        return f"{self.name}, causal" if self.mixed and self.causal else self.name

    @property
    def title(self) -> str:
        """Its number and label."""
        return self.label if self.number is None else f"{self.number} {self.label}"


@dataclass(frozen=True)
class Comparison:
    """All contenders over the same (batch, seq_len) shapes, in the order they were measured.

    Rungs for causal masks follow under one, after FA2 and the rung below them: that one has no
    number there, since it is in the list already.
    """

    shapes: tuple[tuple[int, int], ...]
    entries: tuple[Entry, ...]

    def before(self, entry: Entry) -> Entry | None:
        """The entry that came before one, if it was measured under the same mask."""
        others = [e for e in self.entries if e.name != FA2 and e.causal == entry.causal]
        place = others.index(entry)
        return others[place - 1] if place else None


def compare(measured: Results) -> Comparison:
    """Arranges a run's rows; every contender must have been measured at every shape."""
    shapes = tuple(dict.fromkeys((row.batch, row.seq_len) for row in measured.rows))
    speeds: dict[tuple[str, bool], dict[tuple[int, int], float]] = {}
    first: dict[tuple[str, bool], Row] = {}
    for row in sorted(measured.rows, key=lambda row: row.causal):
        key = (row.contender, row.causal)
        first.setdefault(key, row)
        speeds.setdefault(key, {})[row.batch, row.seq_len] = row.tflops
    for (name, causal), by_shape in speeds.items():
        if missing := [shape for shape in shapes if shape not in by_shape]:
            raise UnsupportedError(f"{name} was not measured at (batch, seq_len) {missing}")
        if (FA2, causal) not in speeds:
            names = ", ".join(n for n, mask in speeds if mask == causal)
            raise UnsupportedError(f"no rows for {FA2} to compare with, only {names}")
    mixed = len({causal for _, causal in speeds}) == 2

    def entry(key: tuple[str, bool]) -> Entry:
        (name, causal), row, reference = key, first[key], speeds[FA2, key[1]]
        mean = harmonic_mean(speeds[key][shape] for shape in shapes)
        listed = causal and (name, False) in speeds
        return Entry(
            name=name if row.number else name.partition(": ")[0],
            number=None if listed else row.number,
            change="" if listed else row.change or name.partition(": ")[2],
            tflops=tuple(speeds[key][shape] for shape in shapes),
            of_fa2=tuple(speeds[key][shape] / reference[shape] for shape in shapes),
            mean_tflops=mean,
            mean_of_fa2=mean / harmonic_mean(reference.values()),
            causal=causal,
            mixed=mixed,
        )

    return Comparison(shapes, tuple(map(entry, speeds)))


def compare_file(path: FilePath) -> tuple[Results, Comparison]:
    """Reads what a run stored, and arranges its rows. Errors name the file."""
    measured = load(path)
    with naming(path, "a results file of whole ladders"):
        return measured, compare(measured)


def opcode_changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """How many more of each opcode, the largest change first; those that stay are left out."""
    changes = {name: after.get(name, 0) - before.get(name, 0) for name in {**before, **after}}
    changed = ((name, change) for name, change in changes.items() if change)
    return dict(sorted(changed, key=lambda item: (-abs(item[1]), item[0])))


def percent_change(ratio: float) -> str:
    """How much more, without a sign on nought."""
    text = f"{100 * (ratio - 1):+.1f} %"
    return "0.0 %" if text[1:] == "0.0 %" else text
