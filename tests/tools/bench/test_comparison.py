# SPDX-License-Identifier: Apache-2.0
"""Rows arranged beside FA2, against ratios worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention.tools.bench.comparison import FA2, compare
from tests.tools.bench.made_up import SHAPES, made_up_causal_results, made_up_results


def test_contenders_keep_their_order_and_shapes() -> None:
    comparison = compare(made_up_results())
    assert comparison.shapes == SHAPES
    assert [entry.name for entry in comparison.entries] == [FA2, "base", "swizzle"]
    assert [entry.number for entry in comparison.entries] == [None, 1, 2]


def test_fractions_of_fa2() -> None:
    fa2, base, swizzle = compare(made_up_results()).entries
    assert fa2.of_fa2 == (1.0, 1.0)
    assert base.of_fa2 == (0.5, 0.25)
    assert fa2.mean_tflops == pytest.approx(150.0)
    assert base.mean_tflops == pytest.approx(60.0)
    assert base.mean_of_fa2 == pytest.approx(0.4)
    assert swizzle.mean_of_fa2 == pytest.approx(1.1)


def test_a_contender_missing_at_a_shape_is_named() -> None:
    results = made_up_results()
    with pytest.raises(UnsupportedError, match=r"swizzle was not measured at .*\(1, 1024\)"):
        compare(dataclasses.replace(results, rows=results.rows[:-1]))


def test_without_fa2_there_is_nothing_to_compare_with() -> None:
    results = made_up_results()
    rows = tuple(row for row in results.rows if row.contender != FA2)
    with pytest.raises(UnsupportedError, match="no rows for FA2"):
        compare(dataclasses.replace(results, rows=rows))


def test_causal_rungs_are_compared_under_their_own_mask() -> None:
    comparison = compare(made_up_causal_results())
    assert [entry.title for entry in comparison.entries] == [
        FA2,
        "1 base",
        "2 swizzle",
        "FA2, causal",
        "2 swizzle, causal",
        "3 halves, causal",
    ]
    *plain, fa2, again, halves = comparison.entries
    assert [entry.causal for entry in plain] == [False] * 3
    assert (fa2.number, fa2.is_fa2, again.number, again.repeats, again.change) == (
        None,
        True,
        None,
        2,
        "",
    )
    assert (halves.name, halves.number, halves.causal) == ("halves", 3, True)
    assert fa2.of_fa2 == (1.0, 1.0)
    assert again.of_fa2 == (1.5, 1.5)
    assert halves.mean_of_fa2 == pytest.approx(2.0)
    assert comparison.below(halves) == again
    assert comparison.below(plain[2]) == plain[1]
    assert comparison.below(plain[1]) is None


def test_a_run_under_one_mask_marks_nothing() -> None:
    whole = dataclasses.replace(made_up_results(), causal=True)
    assert compare(whole) == compare(made_up_results())
    base, swizzle = compare(whole).entries[1:]
    assert compare(whole).below(swizzle) == base


def test_every_mask_needs_its_own_fa2() -> None:
    results = made_up_causal_results()
    rows = tuple(row for row in results.rows if not (row.causal and row.contender == FA2))
    with pytest.raises(UnsupportedError, match=r"no rows for FA2 .* only swizzle, halves"):
        compare(dataclasses.replace(results, rows=rows))
