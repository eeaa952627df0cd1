# SPDX-License-Identifier: Apache-2.0
"""The search finds what is fastest on a machine whose times are known, and trusts nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from flash_attention.kernel_configs import HopperForwardKernelConfig, KernelConfig
from flash_attention_workbench.tune.bench import BATCH, MAX_SPILL_BYTES, Bench
from flash_attention_workbench.tune.candidates import heuristic, starting_points
from flash_attention_workbench.tune.measurer import Failure
from flash_attention_workbench.tune.search import THOROUGH, Result, Search
from flash_attention_workbench.tune.store import Store
from tests.workbench.tune.made_up import MACHINE, SM90, MadeUpMeasurer, dense, true_time

PROBLEM = dense()
HEURISTIC = heuristic(PROBLEM, SM90)
START = starting_points(PROBLEM, SM90)


def searched(measurer: MadeUpMeasurer, path: Path | None = None) -> Result:
    result = Search(Bench(measurer, Store(path, MACHINE)), PROBLEM, HEURISTIC).run(START)
    assert result is not None
    return result


def first_other() -> KernelConfig:
    return next(config for config in START if config != HEURISTIC)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d_head", [64, 128, 192, 256])
def test_it_comes_within_a_percent_of_the_best_there_is(d_head: int, causal: bool) -> None:
    problem = dense(d_head=d_head, causal=causal)
    own, start = heuristic(problem, SM90), starting_points(problem, SM90)

    def true(config: KernelConfig) -> float:
        """Best is what lies two steps from the heuristic's choice."""
        assert isinstance(config, HopperForwardKernelConfig)
        assert isinstance(own, HopperForwardKernelConfig)
        changed = (config.ping_pong == own.ping_pong) + (config.B_c == own.B_c)
        return 1.0 + 0.02 * changed + 0.01 * abs(config.B_c - own.B_c) / 16

    measurer = MadeUpMeasurer(true)
    result = Search(Bench(measurer, Store(None, MACHINE)), problem, own).run(start)
    assert result is not None
    best = min(true(config) for config in measurer.compiled_configs)
    assert true(result.winner) <= 1.01 * best
    assert result.ms < result.heuristic_ms


def test_the_best_is_found_outside_of_where_it_starts() -> None:
    result = searched(MadeUpMeasurer())
    best = min(map(true_time, START))
    assert true_time(result.winner) < best - 0.005
    assert result.winner not in START
    assert result.ms / result.heuristic_ms == pytest.approx(
        true_time(result.winner) / true_time(HEURISTIC), rel=0.01
    )


def test_the_heuristic_stays_when_the_rest_is_noise() -> None:
    result = searched(MadeUpMeasurer(lambda config: 1.0, noise=0.02))
    assert result.winner == HEURISTIC
    faster = MadeUpMeasurer(lambda config: 0.99 if config == first_other() else 1.0, noise=0.0)
    assert searched(faster).winner == first_other()


def test_rounds_let_in_fewer_and_time_them_longer() -> None:
    measurer = MadeUpMeasurer()
    searched(measurer)
    sieve = [lineup for lineup in measurer.lineups if lineup[0] == THOROUGH.sieve_repeats]
    assert all(len(configs) <= BATCH + 1 for _, configs, _ in sieve)
    after = [(repeats, len(set(configs) - {HEURISTIC})) for repeats, configs, _ in measurer.lineups]
    after = after[len(sieve) :]
    entrants = [*THOROUGH.rounds, (THOROUGH.final_repeats, THOROUGH.finalists)]
    assert [repeats for repeats, _ in after] == [repeats for repeats, _ in entrants]
    for (_, count), (_, most) in zip(after, entrants, strict=True):
        assert most - 1 <= count <= most  # the heuristic's own place may be among them
    repeats, final, check = measurer.lineups[-1]
    assert check
    assert HEURISTIC in final
    assert repeats >= 25


def test_every_lineup_has_the_yardstick_in_it() -> None:
    measurer = MadeUpMeasurer()
    searched(measurer)
    assert all(HEURISTIC in configs for _, configs, _ in measurer.lineups)


@pytest.mark.parametrize("fate", ["hung", "faulted", "wrong"])
def test_a_kernel_that_goes_wrong_is_recorded_and_never_wins(
    fate: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = first_other()
    failure = Failure(fate, "because")  # type: ignore[arg-type]
    measurer = MadeUpMeasurer(
        lambda config: 0.5 if config == bad else true_time(config), fates={bad: failure}
    )
    result = searched(measurer, tmp_path / "store")
    assert result.winner != bad
    assert f"{bad.short_form()} {fate}: because" in caplog.text
    assert Store(tmp_path / "store", MACHINE).failure(PROBLEM, bad) == failure
    again = MadeUpMeasurer(fates={bad: failure})
    searched(again, tmp_path / "store")
    assert not any(bad in configs for _, configs, _ in again.lineups)


def test_what_spills_is_never_launched_unless_it_is_the_heuristics() -> None:
    spilling = first_other()
    spills = {spilling: MAX_SPILL_BYTES + 1, HEURISTIC: MAX_SPILL_BYTES + 1}
    measurer = MadeUpMeasurer(lambda config: 0.5 if config == spilling else 1.0, spills=spills)
    assert searched(measurer).winner == HEURISTIC
    assert not any(spilling in configs for _, configs, _ in measurer.lineups)


def test_without_the_heuristic_there_is_no_result() -> None:
    measurer = MadeUpMeasurer(fates={HEURISTIC: Failure("hung", "")})
    search = Search(Bench(measurer, Store(None, MACHINE)), PROBLEM, HEURISTIC)
    assert search.run(START) is None


def test_a_second_search_times_nothing(tmp_path: Path) -> None:
    first = searched(MadeUpMeasurer(), tmp_path / "store")
    again = MadeUpMeasurer()
    assert searched(again, tmp_path / "store") == first
    assert again.lineups == []
    assert again.compiled_configs == []


def test_out_of_time_the_final_is_still_fair() -> None:
    measurer = MadeUpMeasurer()
    search = Search(
        *(Bench(measurer, Store(None, MACHINE)), PROBLEM, HEURISTIC),
        out_of_time=lambda: measurer.now > 1.0,
    )
    result = search.run(START)
    assert result is not None
    assert not result.complete
    assert measurer.now < 4.0
    assert measurer.lineups[-1][0] == THOROUGH.final_repeats
