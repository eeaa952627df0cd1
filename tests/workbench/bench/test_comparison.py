# SPDX-License-Identifier: Apache-2.0
"""Rows arranged beside FA2, against ratios worked out by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.comparison import FA2, compare, compare_file
from flash_attention_workbench.bench.results import save
from tests.workbench.bench.made_up import SHAPES, made_up_results


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


def test_a_file_is_named_in_which_a_contender_is_missing_at_a_shape(tmp_path: Path) -> None:
    results, path = made_up_results(), tmp_path / "half.json"
    save(results, path)
    assert compare_file(path) == (results, compare(results))
    save(dataclasses.replace(results, rows=results.rows[:-1]), path)
    message = r"half\.json is not a results file of whole ladders: swizzle was not measured at"
    with pytest.raises(UnsupportedError, match=message):
        compare_file(path)


def test_without_fa2_there_is_nothing_to_compare_with() -> None:
    results = made_up_results()
    rows = tuple(row for row in results.rows if row.contender != FA2)
    with pytest.raises(UnsupportedError, match="no rows for FA2"):
        compare(dataclasses.replace(results, rows=rows))


def test_rungs_under_a_causal_mask_are_held_to_fa2_and_the_rung_below_under_it() -> None:
    results = made_up_results()
    fa2, swizzle = ([r for r in results.rows if r.contender == n] for n in (FA2, "swizzle"))
    slower = {FA2: 0.5, "swizzle": 0.25, "narrow": 0.75}
    masked = [
        dataclasses.replace(
            row, contender=name, number=number, causal=True, tflops=row.tflops * slower[name]
        )
        for name, number, rows in ((FA2, None, fa2), ("swizzle", 2, swizzle), ("narrow", 3, fa2))
        for row in rows
    ]
    comparison = compare(dataclasses.replace(results, rows=(*results.rows, *masked)))
    *_, base, narrow = comparison.entries
    assert [entry.title for entry in comparison.entries] == [
        *(FA2, "1 base", "2 swizzle", "FA2, causal", "swizzle, causal", "3 narrow, causal")
    ]
    assert narrow.mean_of_fa2 == pytest.approx(1.5)
    assert comparison.before(narrow) is base
    assert comparison.before(base) is None
    assert comparison.before(comparison.entries[2]) is comparison.entries[1]
