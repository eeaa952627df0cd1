# SPDX-License-Identifier: Apache-2.0
"""Timings of several configs, from a tuner's store or from a grid."""

from __future__ import annotations

import json
from pathlib import Path

from flash_attention_workbench.bench.stored import read_folder
from flash_attention_workbench.report.sections.landscape import landscape_section
from flash_attention_workbench.report.trials import Point, Trial, best, trials_of
from tests.workbench.bench.made_up_grid import LONG, SHORT, made_up_grid
from tests.workbench.report.made_up import gradient_grid, stored_results
from tests.workbench.report.parse import having, parse


def test_a_store_keeps_the_last_timing_and_drops_what_failed(tmp_path: Path) -> None:
    points, files = trials_of(stored_results(tmp_path))
    (trials,) = points.values()
    assert list(points) == [Point(64, True, 512, 4, 2, "")]
    assert trials == [Trial("first", 5.0, False), Trial("second <b>", 4.0, False)]
    assert best(trials).config == "second <b>"
    assert files == ("e.jsonl",)


PROBLEM = {"dtype": "BF16", "d_head": 64, "causal": False, "seq_q": 512, "batch": 4}
MACHINE = {"device": "Some GPU", "driver": "1", "nvrtc": "13.0"}


def line(kind: str, config: str, repeats: int, **values: object) -> str:
    given = {"kind": kind, **MACHINE, "config": config, "problem": PROBLEM, "repeats": repeats}
    return json.dumps({**given, **values}) + "\n"


def test_a_store_of_decisions_failures_and_other_machines(tmp_path: Path) -> None:
    lines = (
        line("time", "a", 25, ms=1.0)
        + line("time", "a", 1, ms=3.0)  # a shorter measurement does not replace a longer one
        + line("time", "b", 1, ms=2.0)
        + line("time", "a", 99, ms=9.0, device="another GPU")
        + line("failure", "c", 0, fate="hung", reason="timeout")
        + line("decision", "a", 0, winner="b", ms=0.5)
        + '{"kind": "time", "conf'
    )
    (tmp_path / "timings.jsonl").write_text(lines)
    points, _ = trials_of(read_folder(tmp_path))
    assert points == {
        Point(64, False, 512, 4, 0, "dtype BF16"): [Trial("a", 1.0, False), Trial("b", 2.0, True)]
    }


def test_timings_of_different_turns_are_compared_by_what_they_are_relative_to(
    tmp_path: Path,
) -> None:
    lines = (
        line("time", "first", 3, ms=1.0, relative=1.0)  # the GPU is cool
        + line("time", "slower", 3, ms=1.25, relative=1.25)
        + line("time", "first", 41, ms=2.0, relative=1.0)
        + line("time", "faster", 41, ms=1.5, relative=0.75)
    )
    (tmp_path / "timings.jsonl").write_text(lines)
    points, _ = trials_of(read_folder(tmp_path))
    (trials,) = points.values()
    assert {trial.config: trial.ms for trial in trials} == {
        "first": 2.0,
        "slower": 2.5,
        "faster": 1.5,
    }


def test_a_table_has_winners_and_heuristics(tmp_path: Path) -> None:
    entry = {"problem": PROBLEM, "config": "w", "ms": 1.0, "heuristic": "h", "heuristic_ms": 1.5}
    (tmp_path / "t.json").write_text(json.dumps({"schema": 1, "entries": [entry]}))
    points, files = trials_of(read_folder(tmp_path))
    (trials,) = points.values()
    assert trials == [Trial("h", 1.5, False), Trial("w", 1.0, True)]
    assert files == ("t.json",)


def test_gradients_are_points_of_their_own(tmp_path: Path) -> None:
    backward = {**PROBLEM, "wanted": ["dq", "dk", "dv"], "pass": "backward"}
    repeated = {**backward, "deterministic": True}
    few = {**repeated, "wanted": ["dk", "dv"]}
    lines = ""
    for times, problem in enumerate((few, repeated, PROBLEM, backward), 1):
        lines += line("time", "a", 3, ms=1.0 * times, problem=problem)
        lines += line("time", "b", 3, ms=2.0 * times, problem=problem)
    (tmp_path / "timings.jsonl").write_text(lines)
    points, _ = trials_of(read_folder(tmp_path))
    assert [(point.gradients, trials[0].ms) for point, trials in points.items()] == [
        ("", 3.0),
        ("backward", 4.0),
        ("backward deterministic", 2.0),
        ("backward dk dv deterministic", 1.0),
    ]
    section = landscape_section(read_folder(tmp_path))
    names = [e.text for e in having(parse(str(section.body)), "span", "name")]
    assert names[1:] == [
        "64 full 512",
        "64 full 512 backward",
        "64 full 512 backward deterministic",
        "64 full 512 backward dk dv deterministic",
    ]


def test_a_grid_of_gradients_serves_beside_a_store_of_the_forward_pass(tmp_path: Path) -> None:
    grid = gradient_grid()
    other = {**grid["rows"][0], "config": "another", "ms": 9.0, "selected": False}
    grid["rows"].append(other)
    stored_results(tmp_path)
    (tmp_path / "i.json").write_text(json.dumps(grid))
    points, files = trials_of(read_folder(tmp_path))
    forward, backward = points
    assert (forward.gradients, backward.gradients) == ("", "backward")
    assert [(trial.config, trial.chosen) for trial in points[backward]] == [
        (SHORT, True),
        ("another", False),
    ]
    assert files == ("e.jsonl", "i.json")


def test_a_grid_with_candidates_serves_where_no_store_is(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(json.dumps(made_up_grid()))
    points, files = trials_of(read_folder(tmp_path))
    # points with one config have nothing to compare
    assert [point[:3] for point in points] == [(64, False, 512)]
    (trials,) = points.values()
    assert [(trial.config, trial.chosen) for trial in trials] == [(SHORT, True), (LONG, False)]
    assert files == ("g.json",)
