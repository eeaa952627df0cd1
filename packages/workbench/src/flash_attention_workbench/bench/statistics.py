# SPDX-License-Identifier: Apache-2.0
"""The numbers a measurement is reported as."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one contender: the median, and the quartiles around it."""

    median_ms: float
    low_ms: float
    high_ms: float
    samples: int

    @property
    def spread(self) -> float:
        """Interquartile range as a fraction of the median."""
        return (self.high_ms - self.low_ms) / self.median_ms


def summarise(samples_ms: Iterable[float]) -> Timing:
    """The timing of one contender from all its samples."""
    samples = sorted(samples_ms)
    if not samples or samples[0] <= 0:
        raise ValueError(f"need positive samples to summarise, got {samples}")
    if len(samples) == 1:
        return Timing(samples[0], samples[0], samples[0], 1)
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(median, low, high, len(samples))


def harmonic_mean(values: Iterable[float]) -> float:
    """The mean speed over problems that each get the same amount of work."""
    return statistics.harmonic_mean(list(values))


def tflops(flop: int, milliseconds: float) -> float:
    """`flop` operations in `milliseconds`, in TFLOP/s."""
    return flop / milliseconds * 1e-9


def gigabytes_per_second(count: int, milliseconds: float) -> float:
    """`count` bytes in `milliseconds`, in GB/s."""
    return count / milliseconds * 1e-6
