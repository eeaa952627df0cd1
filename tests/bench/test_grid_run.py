# SPDX-License-Identifier: Apache-2.0
"""A point of the grid: what is timed is checked; measured on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from flash_attention import testing
from flash_attention.bench import grid_run
from flash_attention.bench.grid import Point
from flash_attention.bench.grid_run import measure_point
from flash_attention.bench.peers import PEERS, Lineup
from flash_attention.bench.statistics import Timing
from flash_attention.bench.timing import Contender
from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder


def two_milliseconds_each(
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    repeats: int,
    check: Callable[[str, Tensor], None],
) -> dict[str, Timing]:
    """In place of `time_in_turn`: everything runs, nothing is timed."""
    for contender in contenders:
        contender.poison()
        check(contender.name, contender.run())
    return {contender.name: Timing(2.0, 1.9, 2.1, repeats) for contender in contenders}


def made_up_peers(
    names: Sequence[str], q: Tensor, k: Tensor, v: Tensor, **problem: object
) -> Lineup:
    """One right peer, one wrong one, one missing one."""
    right = testing.attention_16bit(q, k, v)
    peers = (Contender("fa3", lambda: right), Contender("cudnn", lambda: 2 * right))
    return Lineup(peers, {"fa2": "not here"})


def test_rows_of_a_point_and_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_run, "time_in_turn", two_milliseconds_each)
    monkeypatch.setattr(grid_run, "line_up", made_up_peers)
    ladder = get_ladder(DType.FP16, 64, 1)
    selected, static = ladder[5].config, get_ladder(DType.FP16, 64, 3)[15].config
    point = Point(64, False, 128, 1, 1)
    cpu = torch.device("cpu")
    result = measure_point(point, selected, [selected, static], peers=PEERS, repeats=5, device=cpu)
    (row,) = result.rows
    assert (row.config, row.selected, row.ok) == (selected.short_form(), True, True)
    assert (row.d, row.causal, row.seq, row.batch, row.heads) == (64, False, 128, 1, 1)
    assert (row.ms, row.peers, row.ratio) == (2.0, {"fa3": 2.0}, 1.0)
    assert row.tflops == pytest.approx(4 * 128 * 128 * 64 / 2.0 / 1e9)
    assert row.spread == pytest.approx(0.1)
    assert 0 < row.error_ratio < 2
    assert set(result.refused) == {"fa2", "cudnn", static.short_form()}
    assert result.refused["cudnn"].startswith("wrong: max error")


@pytest.mark.gpu
def test_a_point_beside_its_peers() -> None:
    selected, other = (get_ladder()[number - 1].config for number in (16, 2))
    point = Point(128, False, 512, 2, 16)
    device = torch.device("cuda", torch.cuda.current_device())
    result = measure_point(point, selected, [other], peers=["fa2"], repeats=3, device=device)
    assert [(row.config, row.selected, row.ok) for row in result.rows] == [
        (selected.short_form(), True, True),
        (other.short_form(), False, True),
    ]
    for row in result.rows:
        assert row.tflops == pytest.approx(point.flop / row.ms / 1e9)
        assert row.peers["fa2"] > 0
        assert row.ratio is None
    assert dict(result.refused) == {}


@pytest.mark.gpu
def test_what_a_kernel_cannot_do_is_told() -> None:
    ladder = get_ladder()
    point = Point(128, True, 512, 2, 16)
    device = torch.device("cuda", torch.cuda.current_device())
    result = measure_point(point, ladder[0].config, [], peers=[], repeats=3, device=device)
    assert result.rows == ()
    assert "Hopper" in result.refused[ladder[0].config.short_form()]
