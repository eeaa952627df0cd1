# SPDX-License-Identifier: Apache-2.0
"""Rows of a results file arranged by contender, each beside FlashAttention-2."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.errors import UnsupportedError
from flash_attention.tools.bench.results import Results, Row
from flash_attention.tools.bench.statistics import harmonic_mean

FA2 = "FA2"
"""The contender everything is compared with: torch's SDPA, its FlashAttention-2 backend."""


@dataclass(frozen=True)
class Entry:
    """One contender over all shapes; `*_of_fa2` are fractions of FA2's speed.

    A config that is no rung goes by its tile, and its switches stand for the change.
    """

    name: str
    number: int | None
    change: str
    tflops: tuple[float, ...]
    of_fa2: tuple[float, ...]
    mean_tflops: float
    mean_of_fa2: float


@dataclass(frozen=True)
class Comparison:
    """All contenders over the same (batch, seq_len) shapes, in the order they were measured."""

    shapes: tuple[tuple[int, int], ...]
    entries: tuple[Entry, ...]


def compare(measured: Results) -> Comparison:
    """Arranges a run's rows; every contender must have been measured at every shape."""
    shapes = tuple(dict.fromkeys((row.batch, row.seq_len) for row in measured.rows))
    speeds: dict[str, dict[tuple[int, int], float]] = {}
    first: dict[str, Row] = {}
    for row in measured.rows:
        first.setdefault(row.contender, row)
        speeds.setdefault(row.contender, {})[row.batch, row.seq_len] = row.tflops
    for name, by_shape in speeds.items():
        if missing := [shape for shape in shapes if shape not in by_shape]:
            raise UnsupportedError(f"{name} was not measured at (batch, seq_len) {missing}")
    if FA2 not in speeds:
        raise UnsupportedError(f"no rows for {FA2} to compare with, only {', '.join(speeds)}")
    reference = speeds[FA2]
    reference_mean = harmonic_mean(reference.values())
    return Comparison(
        shapes,
        tuple(
            Entry(
                name=name if first[name].number else name.partition(": ")[0],
                number=first[name].number,
                change=first[name].change or name.partition(": ")[2],
                tflops=tuple(by_shape[shape] for shape in shapes),
                of_fa2=tuple(by_shape[shape] / reference[shape] for shape in shapes),
                mean_tflops=(mean := harmonic_mean(by_shape[shape] for shape in shapes)),
                mean_of_fa2=mean / reference_mean,
            )
            for name, by_shape in speeds.items()
        ),
    )
