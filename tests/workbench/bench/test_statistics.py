# SPDX-License-Identifier: Apache-2.0
"""Medians, spreads and means on numbers worked out by hand."""

from __future__ import annotations

import pytest

from flash_attention_workbench.bench.statistics import Timing, harmonic_mean, summarise, tflops


def test_median_and_quartiles_ignore_order_and_one_outlier() -> None:
    assert summarise([3.0, 1.0, 100.0, 2.0, 4.0]) == Timing(3.0, 2.0, 4.0, 5)


def test_spread_is_relative_to_the_median() -> None:
    assert summarise([1.0, 2.0, 3.0, 4.0, 5.0]).spread == pytest.approx(2 / 3)


def test_even_number_of_samples_interpolates() -> None:
    timing = summarise([1.0, 2.0, 3.0, 4.0])
    assert (timing.low_ms, timing.median_ms, timing.high_ms) == (1.75, 2.5, 3.25)


def test_single_sample_has_no_spread() -> None:
    assert summarise([2.5]) == Timing(2.5, 2.5, 2.5, 1)


@pytest.mark.parametrize("samples", [[], [0.0, 1.0], [-1.0]])
def test_impossible_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="positive samples"):
        summarise(samples)


def test_harmonic_mean_is_total_work_over_total_time() -> None:
    work, seconds = 12.0, (12 / 2, 12 / 3, 12 / 6)
    assert harmonic_mean([2.0, 3.0, 6.0]) == pytest.approx(3 * work / sum(seconds))


def test_tflops() -> None:
    assert tflops(4 * 10**12, 2.0) == pytest.approx(2000.0)
