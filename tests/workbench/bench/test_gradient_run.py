# SPDX-License-Identifier: Apache-2.0
"""A point of a grid of gradients: on a CPU with made-up times, and measured on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from flash_attention.call.backward_call import Gradients
from flash_attention.kernel_configs import DType
from flash_attention.launch.compute import compute_gradients
from flash_attention_workbench.bench import gradient_run
from flash_attention_workbench.bench.beside_fa3 import Asked, BesideFa3, MeasuredPoint
from flash_attention_workbench.bench.gradient_case import GradientCase
from flash_attention_workbench.bench.gradient_run import (
    DETERMINISTIC,
    measure_beside_fa3,
    measure_gradients,
)
from flash_attention_workbench.bench.grid import GRIDS, Measured, Point
from flash_attention_workbench.bench.grid_record import load_json, save_csv, save_json
from flash_attention_workbench.bench.grid_run import OURS, GridRow
from flash_attention_workbench.bench.peers import Lineup
from flash_attention_workbench.bench.statistics import Timing
from flash_attention_workbench.bench.timing import Contender

CPU = torch.device("cpu")
POINT = Point(64, True, 96, 1, 4, heads_k=2)
ASKED = Asked(POINT, DType.BF16, Measured.BACKWARD, repeats=5, device=CPU)
TIMES = {OURS: 2.0, DETERMINISTIC: 2.5, "cudnn": 3.0, "fa2": 8.0}
THERE = {OURS: 2.2, DETERMINISTIC: 2.4, "fa3": 3.3, "fa3_deterministic": 4.8}


def timing(ms: float) -> Timing:
    return Timing(ms, ms - 0.1, ms + 0.1, 5)


def made_up_times(
    contenders: Sequence[Contender], *, check: Callable[[str, Any], None], **settings: Any
) -> dict[str, Timing]:
    """In place of `time_in_turn`: everything runs, nothing is timed."""
    for contender in contenders:
        contender.poison()
        check(contender.name, contender.run())
    return {contender.name: timing(TIMES.get(contender.name, 2.0)) for contender in contenders}


def made_up_peers(names: Sequence[str], of: GradientCase, fa3: Path | None) -> Lineup:
    """A right peer, a wrong one, and whoever else is missing."""
    right = compute_gradients(of.call())
    assert right.dq is not None
    wrong = right._replace(dq=2 * right.dq)
    peers = {"cudnn": right, "fa2": wrong}
    present = tuple(Contender(n, partial(lambda g: g, g)) for n, g in peers.items() if n in names)
    return Lineup(present, {name: "not here" for name in names if name not in peers})


class MadeUpProcess(BesideFa3):
    """In place of another process: the checks are those of this one."""

    def measure(self, how: Callable[[Asked], MeasuredPoint], asked: Asked) -> MeasuredPoint:
        here = gradient_run.measure_process(asked, [], ())
        checks = {name: here.checks[OURS] for name in THERE}
        return MeasuredPoint(here.config, {n: timing(t) for n, t in THERE.items()}, checks, {})


@pytest.fixture(autouse=True)
def no_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "gpu" not in request.keywords:
        monkeypatch.setattr(gradient_run, "time_in_turn", made_up_times)
        monkeypatch.setattr(gradient_run, "line_up_gradients", made_up_peers)


@pytest.mark.parametrize("measured", [Measured.BACKWARD, Measured.TRAINING])
def test_every_peer_is_seen_beside_ours_of_its_process(measured: Measured) -> None:
    asked = replace(ASKED, measured=measured)
    result = measure_gradients(asked, [], ("fa3", "cudnn", "fa2"), MadeUpProcess())
    (row,) = result.rows
    assert (row.selected, row.ok, row.measured) == (True, True, measured.name)
    assert row.config.startswith("hopper_backward(BF16, 64, ")
    assert row.peers == {"cudnn": 3.0, "fa3": 3.3, "fa3_deterministic": 4.8}
    assert row.beside == {"fa3": 2.2, "fa3_deterministic": 2.4}
    assert (row.ms, row.deterministic_ms) == (2.0, 2.5)
    assert row.ratio == pytest.approx(1.5)
    assert row.multiple("fa3") == pytest.approx(1.5)
    assert row.multiple("fa3_deterministic") == pytest.approx(2.0)
    flop = 4 * 4 * 64 * 96 * 96 / 2 * {Measured.BACKWARD: 2.5, Measured.TRAINING: 3.5}[measured]
    assert row.tflops == pytest.approx(flop / 2.0 / 1e9)
    assert 0 < row.error_ratio < 2
    assert set(result.refused) == {"fa2"}
    assert result.refused["fa2"].startswith("wrong: max error")


def test_other_configs_have_the_peers_of_their_process() -> None:
    config = GradientCase.of(POINT, DType.BF16, Measured.BACKWARD).plan().config
    result = measure_gradients(ASKED, [config], ("fa3", "cudnn"), MadeUpProcess())
    row, other = result.rows
    assert (other.config, other.selected, other.ok) == (row.config, False, True)
    assert (other.peers, other.beside, other.deterministic_ms) == ({"cudnn": 3.0}, {}, None)


def test_what_is_chosen_without_tables_is_timed_if_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = GradientCase.of(POINT, DType.BF16, Measured.BACKWARD).plan().config
    monkeypatch.setitem(TIMES, own.short_form(), 2.4)
    (row,) = measure_gradients(
        replace(ASKED, heuristic=True), [], ("fa3", "cudnn"), MadeUpProcess()
    ).rows
    assert (row.ms, row.heuristic_ms) == (2.0, 2.4)
    row, given = measure_gradients(
        replace(ASKED, heuristic=True), [own], ("cudnn",), MadeUpProcess()
    ).rows
    assert (row.heuristic_ms, given.config, given.heuristic_ms) == (2.4, own.short_form(), None)
    (row,) = measure_gradients(ASKED, [], ("cudnn",), MadeUpProcess()).rows
    assert row.heuristic_ms is None


@pytest.mark.parametrize("point", [POINT, replace(POINT, lengths=(40, 96), batch=2)])
@pytest.mark.parametrize("measured", [Measured.BACKWARD, Measured.TRAINING])
def test_wrong_gradients_of_ours_are_told(
    point: Point, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(ASKED, point=point, measured=measured)
    assert measure_gradients(asked, [], (), BesideFa3()).rows[0].ok
    honest = GradientCase.ours

    def wrong(self: GradientCase, name: str, *, deterministic: bool = False) -> Contender:
        contender = honest(self, name, deterministic=deterministic)

        def run() -> Gradients:
            gradients: Gradients = contender.run()
            assert gradients.dv is not None
            return gradients._replace(dv=gradients.dv + 1) if deterministic else gradients

        return replace(contender, run=run)

    monkeypatch.setattr(GradientCase, "ours", wrong)
    (row,) = measure_gradients(asked, [], (), BesideFa3()).rows
    assert not row.ok
    assert row.deterministic_ms is None


@pytest.mark.slow  # another process imports torch
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_process_measures_and_says_what_it_lacks(tmp_path: Path) -> None:
    library = tmp_path / "other.so"
    library.touch()
    process = BesideFa3()
    try:
        refused = process.measure(measure_beside_fa3, replace(ASKED, fa3=library)).refused
    finally:
        process.close()
    assert set(refused) == {"fa3"}
    assert "cuda device" in refused["fa3"]


def test_rows_of_gradients_are_stored_and_read(tmp_path: Path) -> None:
    (row,) = measure_gradients(ASKED, [], ("fa3",), MadeUpProcess()).rows
    facts = dict.fromkeys(("device", "date", "commit", "command", "grid", "dtype"), "x")
    save_json(tmp_path / "r.json", facts, [row], [])
    assert load_json(tmp_path / "r.json").rows == (row,)
    save_csv(tmp_path / "r.csv", [row])
    header, line = (tmp_path / "r.csv").read_text().splitlines()
    told = dict(zip(header.split(","), line.split(","), strict=False))
    assert "ours_beside_fa3_ms" in told
    assert isinstance(row, GridRow)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name, g in GRIDS.items() if g.measured.value > 1])
def test_a_point_of_every_grid_on_a_gpu(name: str) -> None:
    grid = GRIDS[name]
    device = torch.device("cuda", 0)
    asked = Asked(grid.points()[0], grid.dtype, grid.measured, 3, device)
    process = BesideFa3()
    try:
        result = measure_gradients(asked, [], ("fa3", "cudnn", "fa2"), process)
    finally:
        process.close()
    (row,) = result.rows
    assert row.ok
    assert row.deterministic_ms is not None
    assert "fa2" in row.peers, result.refused
    assert "fa3" in row.peers or "fa3" in result.refused
