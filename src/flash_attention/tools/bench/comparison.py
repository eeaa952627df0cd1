# SPDX-License-Identifier: Apache-2.0
"""Rows of a results file arranged by contender, each beside FlashAttention-2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flash_attention.errors import UnsupportedError
from flash_attention.tools.bench.results import Results, Row
from flash_attention.tools.bench.statistics import harmonic_mean

Shape = tuple[int, int]
"""Batch and sequence length."""

FA2 = "FA2"
"""The contender everything is compared with: torch's SDPA, its FlashAttention-2 backend."""


@dataclass(frozen=True)
class Entry:
    """One contender over all shapes; `*_of_fa2` are fractions of FA2's speed under the same mask.

    A config that is no rung goes by its tile, and its switches stand for the change. Where some
    rungs were measured under a causal mask and others under none, those are `causal`; the last of
    the others was measured under both, and the second time it is no rung but `repeats` one.
    """

    name: str
    number: int | None
    change: str
    tflops: tuple[float, ...]
    of_fa2: tuple[float, ...]
    mean_tflops: float
    mean_of_fa2: float
    causal: bool = False
    repeats: int | None = None

    @property
    def is_fa2(self) -> bool:
        """Whether this is what the others are compared with, under either mask."""
        return self.name in (FA2, f"{FA2}, causal")

    @property
    def title(self) -> str:
        """How tables and plots name it."""
        number = "" if self.number is None else f"{self.number} "
        mask = ", causal" if self.causal and self.number is not None else ""
        return f"{number}{self.name}{mask}"


@dataclass(frozen=True)
class Comparison:
    """All contenders over the same (batch, seq_len) shapes, in the order they were measured."""

    shapes: tuple[Shape, ...]
    entries: tuple[Entry, ...]

    def below(self, entry: Entry) -> Entry | None:
        """The rung below one, measured under the same mask."""
        for other in self.entries:
            number = other.repeats if other.number is None else other.number
            if number is not None and (number + 1, other.causal) == (entry.number, entry.causal):
                return other
        return None


def compare(measured: Results) -> Comparison:
    """Arranges a run's rows; every contender must have been measured at every shape."""
    shapes = tuple(dict.fromkeys((row.batch, row.seq_len) for row in measured.rows))
    contenders: dict[tuple[str, bool], dict[Shape, Row]] = {}
    for row in measured.rows:
        by_shape = contenders.setdefault((row.contender, row.causal or measured.causal), {})
        by_shape[row.batch, row.seq_len] = row
    for (name, _), by_shape in contenders.items():
        if missing := [shape for shape in shapes if shape not in by_shape]:
            raise UnsupportedError(f"{name} was not measured at (batch, seq_len) {missing}")
    masks = {causal for _, causal in contenders}
    for causal in masks:
        if (FA2, causal) not in contenders:
            names = ", ".join(name for name, mask in contenders if mask == causal)
            raise UnsupportedError(f"no rows for {FA2} to compare with, only {names}")
    return Comparison(shapes, tuple(_entries(shapes, contenders, mixed=len(masks) > 1)))


def _entries(
    shapes: Sequence[Shape], contenders: Mapping[tuple[str, bool], Mapping[Shape, Row]], mixed: bool
) -> Iterator[Entry]:
    for (name, causal), by_shape in contenders.items():
        speeds = [by_shape[shape].tflops for shape in shapes]
        reference = [contenders[FA2, causal][shape].tflops for shape in shapes]
        row = by_shape[shapes[0]]
        entry = Entry(
            name=name if row.number else name.partition(": ")[0],
            number=row.number,
            change=row.change or name.partition(": ")[2],
            tflops=tuple(speeds),
            of_fa2=tuple(speed / fa2 for speed, fa2 in zip(speeds, reference, strict=True)),
            mean_tflops=(mean := harmonic_mean(speeds)),
            mean_of_fa2=mean / harmonic_mean(reference),
            causal=mixed and causal,
        )
        if entry.causal and (name, False) in contenders:
            number = "" if row.number is None else f"{row.number} "
            name = f"{number}{name}, causal"
            entry = replace(entry, name=name, number=None, repeats=row.number)
        yield entry
