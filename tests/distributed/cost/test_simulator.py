# SPDX-License-Identifier: Apache-2.0
"""The simulator beside measured kernels, real messages, and tasks that were counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from benchmarks.render.rates import FILES, measured_rates
from flash_attention import UnsupportedError
from flash_attention.distributed import Estimate, Link, Machine, h200, make_plan, simulate
from flash_attention.distributed.cost.machine import MEASURED
from flash_attention.distributed.cost.simulator import FORWARD, simulate_schedule
from flash_attention.distributed.cost.work import Shape, even_work, ring_work
from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import Plan
from flash_attention.distributed.rounds import needed
from flash_attention.distributed.spans import count_rows
from tests.distributed.ranks import run_ranks
from tests.distributed.sequences import masks, pairs_of, plans

RESULTS = Path(__file__).resolve().parents[3] / "results"
CAUSAL = Mask(None, 0)


def test_the_package_has_the_measured_speeds() -> None:
    assert json.loads(MEASURED.read_text()) == measured_rates(RESULTS)


@pytest.mark.parametrize("pass_", FILES)
def test_one_gpu_takes_the_measured_time(pass_: str) -> None:
    rows = json.loads((RESULTS / FILES[pass_]).read_text())["rows"]
    for row in (row for row in rows if row["selected"]):
        (estimate,) = simulate(
            row["seq"],
            1,
            heads=row["heads"],
            d=row["d"],
            batch=row["batch"],
            causal=row["causal"],
            backward=pass_ != FORWARD,
        )
        # The area of a causal mask has half a diagonal more than is counted for speeds.
        assert estimate.seconds * 1e3 == pytest.approx(row["ms"], rel=0.003)
        assert (estimate.communicating, estimate.hidden) == (0, 1)


@given(plans, masks)
def test_work_is_that_of_the_tasks(plan: Plan, mask: Mask) -> None:
    if len(plan.documents) > 2:
        plan = make_plan(plan.total, plan.ranks, causal=True)
    for work in ring_work(plan, mask):
        for rank in range(plan.ranks):
            source = int(work.source[rank])
            assert work.area[rank] == len(pairs_of(plan, mask, rank, source))
            travels = 0 if source == rank else count_rows(needed(plan, mask, rank, source))
            assert work.rows[rank] == travels


@given(plans, masks)
def test_even_work_has_the_same_sums(plan: Plan, mask: Mask) -> None:
    works = list(even_work(plan, mask))
    for rank in range(plan.ranks):
        assert sum(w.area[rank] for w in works) == pytest.approx(plan.areas(mask)[rank])
        others = (source for source in range(plan.ranks) if source != rank)
        rows = sum(count_rows(needed(plan, mask, rank, source)) for source in others)
        assert sum(w.rows[rank] for w in works) == pytest.approx(rows)


@pytest.mark.slow
def test_ranks_send_the_bytes_that_are_simulated(tmp_path: Path) -> None:
    results: list[dict[str, list[float]]] = run_ranks("placements:bytes_sent", 4, tmp_path)
    assert len(results[0]) == 8
    for name in results[0]:
        counted = sum(told[name][0] for told in results) / 4
        assert counted == results[0][name][1], name


def ring(length: int, **given: Any) -> Estimate:
    found = simulate(length, 8, **given)
    return next(e for e in found if e.schedule == "ring" and e.mesh == (8,))


@pytest.mark.parametrize("backward", [False, True])
def test_a_ring_of_eight_hides_communication(backward: bool) -> None:
    found = ring(1 << 20, heads=32, heads_k=8, d=128, backward=backward)
    assert found.hidden >= 0.95
    assert found.seconds == pytest.approx(found.computing, rel=0.01)


def slow_links() -> Machine:
    fast = h200()
    link = Link(1.0, 1000.0)
    return Machine(fast.name, link, link, fast.node, fast.copy_tb_s, fast.rates)


def test_slow_links_are_waited_for() -> None:
    found = simulate(1 << 15, 8, heads=32, heads_k=8, machine=slow_links())
    for estimate in found:
        assert estimate.hidden < 0.6
        assert estimate.seconds == pytest.approx(estimate.computing + estimate.exposed, rel=0.1), (
            estimate
        )
    assert [e.seconds for e in found] == sorted(e.seconds for e in found)


def test_a_window_moves_less() -> None:
    whole, windowed = (ring(1 << 17, heads=8, window=window) for window in (None, (1024, 0)))
    assert windowed.sent_bytes < whole.sent_bytes / 20


def test_schedules_with_heads_need_heads_that_divide() -> None:
    meshes = {(e.schedule, e.mesh) for e in simulate(1 << 14, 8, heads=6, heads_k=2)}
    assert meshes == {("ring", (8,)), ("all-gather", (8,)), ("ring", (4, 2))}


def test_simulating_documents_evenly_is_close() -> None:
    plan, shape = make_plan(1 << 18, 8, causal=True), Shape(32, 8, 128, 128)
    even, exact = (
        simulate_schedule(h200(), plan, CAUSAL, shape, "ring", 1, FORWARD, work).seconds
        for work in (even_work, ring_work)
    )
    assert even == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"heads": 0}, "heads is 0; pass a positive int"),
        ({"heads_k": 3}, "heads must be a multiple of heads_k"),
        ({"gpus": 0}, "ranks is 0"),
        ({"length": 2.5}, "length is 2.5"),
    ],
)
def test_what_cannot_be_simulated(given: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"length": 64, "gpus": 2, "heads": 4} | given
    with pytest.raises(UnsupportedError, match=says):
        simulate(**arguments)
