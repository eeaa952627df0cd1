# SPDX-License-Identifier: Apache-2.0
"""A point of the grid: on a CPU with made-up times, and measured on a GPU."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
import torch

from flash_attention import testing
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig, KernelConfig
from flash_attention.ladder import get_ladder
from flash_attention_workbench.bench import grid_run
from flash_attention_workbench.bench.beside_fa3 import Asked, BesideFa3, MeasuredPoint
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.grid import GRIDS, Measured, Point
from flash_attention_workbench.bench.grid_run import PointResult, measure_beside_fa3, measure_point
from flash_attention_workbench.bench.peers import PEERS, Lineup
from flash_attention_workbench.bench.peers.fa3 import FA3_VARIABLE
from flash_attention_workbench.bench.timing import Contender
from tests.workbench.bench.made_up_times import made_up_times

CPU = torch.device("cpu")


TIMES = {"fa3": 3.0, grid_run.NO_WINDOW: 5.0, grid_run.COPY: 4.0}  # others take 2 ms
RUN_ALL = made_up_times(lambda name: TIMES.get(name, 2.0), spread=0.1)


def made_up_peers(names: Sequence[str], case: Case, **settings: object) -> Lineup:
    """One right peer, one wrong one, one missing one."""
    features: testing.CallFeatures = {"causal": case.point.causal, "window": case.window}
    if case.starts is not None:
        features |= {"cu_seqlens_q": case.starts, "cu_seqlens_k": case.starts}
    right = testing.attention_16bit(case.q, case.k, case.v, **features)
    peers = {"fa3": right, "efficient": right, "cudnn": 2 * right}
    present = [
        Contender(n, partial(lambda out: out, out)) for n, out in peers.items() if n in names
    ]
    return Lineup(tuple(present), {name: "not here" for name in names if name not in peers})


class MadeUpProcess(BesideFa3):
    """In place of another process: this one, in which ours takes longer."""

    def measure(self, how: Callable[[Asked], MeasuredPoint], asked: Asked) -> MeasuredPoint:
        found = how(asked)
        slower = replace(found.timings[found.config], median_ms=2.5)
        return replace(found, timings={**found.timings, found.config: slower})


def measured(
    point: Point,
    dtype: DType,
    configs: Sequence[KernelConfig] = (),
    peers: Sequence[str] = (),
    *,
    device: torch.device = CPU,
    repeats: int = 5,
    heuristic: bool = False,
) -> PointResult:
    asked = Asked(point, dtype, Measured.FORWARD, repeats, device=device, heuristic=heuristic)
    return measure_point(asked, configs, peers, MadeUpProcess())


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_run, "time_in_turn", RUN_ALL)
    monkeypatch.setattr(grid_run, "line_up", made_up_peers)
    monkeypatch.setattr(grid_run, "COPY_BYTES", 1 << 20)


@pytest.mark.usefixtures("no_clock")
def test_rows_of_a_point_and_what_is_refused() -> None:
    other = get_ladder(DType.FP16, 64, 1)[5].config
    static = get_ladder(DType.FP16, 64, 3)[15].config
    point = Point(64, False, 128, 1, 1)
    result = measured(point, DType.FP16, [other, static], PEERS)
    row, second = result.rows
    assert row.config.startswith("hopper(FP16, 64, ")
    assert (row.selected, row.ok, row.num_splits) == (True, True, 1)
    assert (second.config, second.selected, second.ok) == (other.short_form(), False, True)
    assert (row.d, row.causal, row.seq, row.batch, row.heads) == (64, False, 128, 1, 1)
    assert (row.ms, row.peers, row.ratio) == (2.0, {"fa3": 3.0, "efficient": 2.0}, 1.2)
    assert (row.beside, row.multiple("fa3")) == ({"fa3": 2.5}, 1.2)
    assert (second.peers, second.beside, second.ratio) == ({"efficient": 2.0}, {}, None)
    assert row.tflops == pytest.approx(4 * 128 * 128 * 64 / 2.0 / 1e9)
    assert row.spread == pytest.approx(0.1)
    assert 0 < row.error_ratio < 2
    assert (row.gbps, row.copy_gbps, row.full_ms) == (None, None, None)
    missing = {"fa2", "flex", "sdpa_math"}
    assert set(result.refused) == {*missing, "cudnn", static.short_form()}
    assert result.refused["cudnn"].startswith("wrong: max error")


@pytest.mark.usefixtures("no_clock")
def test_what_is_chosen_without_tables_is_timed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    point = Point(64, False, 128, 1, 1)

    def rows(heuristic: bool) -> list[tuple[str, bool, float | None]]:
        result = measured(point, DType.FP16, heuristic=heuristic)
        assert all(row.ok for row in result.rows)
        return [(row.config, row.selected, row.heuristic_ms) for row in result.rows]

    ((chosen, _, nothing),) = rows(heuristic=False)
    assert nothing is None
    assert rows(heuristic=True) == [(chosen, True, 2.0)]  # the same kernel
    other = get_ladder(DType.FP16, 64, 1)[5].config
    monkeypatch.setattr(grid_run, "select_config", lambda problem, arch: other)
    monkeypatch.setitem(TIMES, other.short_form(), 2.5)
    assert rows(heuristic=True) == [(chosen, True, 2.5), (other.short_form(), False, None)]


@pytest.mark.usefixtures("no_clock")
def test_few_queries_ask_no_table() -> None:
    point = Point(64, False, 1024, 1, 4, heads_k=1, seq_q=1)
    (row,) = measured(point, DType.BF16, heuristic=True).rows
    assert row.heuristic_ms is None


@pytest.mark.usefixtures("no_clock")
def test_few_queries_are_counted_in_bytes_beside_a_copy() -> None:
    point = Point(64, False, 1024, 1, 4, heads_k=1, seq_q=1)
    (row,) = measured(point, DType.BF16, peers=["fa3"]).rows
    assert (row.ok, row.num_splits) == (True, 2)
    assert row.gbps == pytest.approx(2 * 1024 * 64 * 2 / 2e-3 / 1e9)
    assert row.copy_gbps == pytest.approx(2 * 2**20 / 4e-3 / 1e9)


@pytest.mark.usefixtures("no_clock")
def test_a_window_is_timed_beside_the_whole_triangle() -> None:
    point = Point(64, True, 256, 1, 2, window=32)
    (row,) = measured(point, DType.BF16, peers=["fa3"]).rows
    assert (row.ok, row.window, row.full_ms) == (True, 32, 5.0)
    assert row.peers == {"fa3": 3.0}


@pytest.mark.usefixtures("no_clock")
def test_packed_entries_are_a_point() -> None:
    point = Point(64, True, 128, 2, 2, lengths=(128, 70))
    (row,) = measured(point, DType.BF16, peers=["fa3"]).rows
    assert (row.ok, row.lengths, row.peers) == (True, (128, 70), {"fa3": 3.0})


@pytest.mark.usefixtures("no_clock")
def test_a_problem_without_a_kernel_is_refused_and_no_peer_is_timed() -> None:
    result = measured(Point(300, False, 128, 1, 1), DType.BF16, peers=PEERS)
    assert result.rows == ()
    assert set(result.refused) == {grid_run.OURS}


@pytest.mark.gpu
def test_a_point_beside_its_peers() -> None:
    other = get_ladder()[15].config
    point = Point(128, False, 512, 2, 16)
    device = torch.device("cuda", torch.cuda.current_device())
    result = measured(point, DType.FP16, [other], ["fa2"], repeats=3, device=device)
    assert [(row.selected, row.ok) for row in result.rows] == [(True, True), (False, True)]
    assert result.rows[1].config == other.short_form()
    for row in result.rows:
        assert row.tflops == pytest.approx(point.flop / row.ms / 1e9)
        assert row.peers["fa2"] > 0
        assert row.ratio is None
    assert dict(result.refused) == {}


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize("name", ["prefill_gqa", "varlen", "decode", "window"])
def test_every_kind_of_point_runs_and_is_right(name: str) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    point = GRIDS[name].points()[0]
    result = measured(point, DType.BF16, [], ["fa2"], repeats=3, device=device)
    (row,) = result.rows
    assert row.ok
    assert "fa2" in row.peers, result.refused
    assert (row.gbps is not None) == (row.copy_gbps is not None) == (name == "decode")
    assert (row.full_ms is not None) == (name == "window")


@pytest.mark.gpu
def test_what_a_kernel_cannot_do_is_told() -> None:
    first = get_ladder()[0].config
    assert isinstance(first, FlashForwardKernelConfig)
    config = replace(first, static_row_stride=1024)  # the tensors have 2048
    point = Point(128, True, 512, 2, 16)
    device = torch.device("cuda", torch.cuda.current_device())
    result = measured(point, DType.FP16, [config], [], repeats=3, device=device)
    assert "static_row_stride" in result.refused[config.short_form()]


def test_an_output_of_ours_that_is_wrong_beside_fa3_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grid_run, "time_in_turn", RUN_ALL)
    monkeypatch.setattr(grid_run, "line_up", made_up_peers)
    honest = MadeUpProcess.measure

    def wrong(
        self: MadeUpProcess, how: Callable[[Asked], MeasuredPoint], asked: Asked
    ) -> MeasuredPoint:
        found = honest(self, how, asked)
        bad = {"out": replace(found.of(found.config)[0], error=math.nan)}
        return replace(found, checks={**found.checks, found.config: bad})

    monkeypatch.setattr(MadeUpProcess, "measure", wrong)
    (row,) = measured(Point(64, False, 128, 1, 1), DType.FP16, peers=["fa3"]).rows
    assert (row.ok, row.beside, row.ratio) == (False, {}, 1.5)


@pytest.mark.gpu
@pytest.mark.skipif(FA3_VARIABLE not in os.environ, reason="needs FA3's library")
@pytest.mark.parametrize("name", ["fa3", "prefill_gqa", "varlen", "decode", "window"])
def test_fa3_is_right_beside_ours_in_its_process(name: str) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    asked = Asked(GRIDS[name].points()[0], DType.BF16, Measured.FORWARD, 3, device)
    with closing(BesideFa3()) as process:
        found = process.measure(measure_beside_fa3, asked)
    assert dict(found.refused) == {}
    assert found.right_ms("fa3") is not None
    assert found.right_ms(found.config) is not None
