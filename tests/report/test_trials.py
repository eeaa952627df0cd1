# SPDX-License-Identifier: Apache-2.0
"""Timings of several configs, from a tuner's store or from a grid."""

from __future__ import annotations

import json
from pathlib import Path

from flash_attention.bench.stored import read_folder
from flash_attention.report.trials import Trial, best, trials_of
from tests.bench.made_up_grid import LONG, SHORT, made_up_grid
from tests.report.made_up import stored_results


def test_a_store_keeps_the_last_timing_and_drops_what_failed(tmp_path: Path) -> None:
    points, files = trials_of(stored_results(tmp_path))
    (trials,) = points.values()
    assert list(points) == [(64, True, 512, "batch 4, heads 2")]
    assert trials == [Trial("first", 5.0, False), Trial("second <b>", 4.0, False)]
    assert best(trials).config == "second <b>"
    assert files == ("e.jsonl",)


def test_a_grid_with_candidates_serves_where_no_store_is(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(json.dumps(made_up_grid()))
    points, files = trials_of(read_folder(tmp_path))
    # points with one config have nothing to compare
    assert [point[:3] for point in points] == [(64, False, 512)]
    (trials,) = points.values()
    assert [(trial.config, trial.chosen) for trial in trials] == [(SHORT, True), (LONG, False)]
    assert files == ("g.json",)
