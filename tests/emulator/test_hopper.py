# SPDX-License-Identifier: Apache-2.0
"""Attention on sm_90a from CUDA to its output, with and without mistakes."""

from __future__ import annotations

import pytest

from flash_attention.emulator import SCHEDULES
from tests.emulator.hopper_mutations import (
    MUTATIONS,
    HopperMutation,
    Problem,
    attempt,
    catch,
    caught,
)

BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}


@pytest.mark.parametrize(
    ("problem", "tolerance"),
    [
        (Problem(), 5e-4),
        (Problem(queries=256, keys=256), 5e-4),
        (Problem(head=128, queries=130, keys=257), 5e-4),
        (Problem(dtype="bf16"), 4e-3),
        (Problem(queries=1, keys=1, heads=3, ctas=4), 1e-3),
    ],
)
def test_attention_is_right_and_nothing_is_found(problem: Problem, tolerance: float) -> None:
    seen = attempt(problem)
    assert seen.kinds == frozenset()
    assert seen.output_error < tolerance
    assert seen.lse_error < 2e-6


@pytest.mark.parametrize(
    ("schedule", "seed"), [("depth-first", 0), ("random", 0), ("random", 1), ("random", 2)]
)
def test_attention_is_clean_in_every_order(schedule: str, seed: int) -> None:
    seen = attempt(Problem(), schedule=schedule, seed=seed)
    assert seen.kinds == frozenset()
    assert seen.output_error < 5e-4


def test_a_second_launch_takes_all_tiles_again() -> None:
    assert attempt(Problem(), launches=2).output_error < 5e-4


@pytest.mark.parametrize("name", BY_NAME)
def test_the_mistake_is_caught_as_predicted(name: str) -> None:
    mutation = BY_NAME[name]
    seen = catch(mutation)
    assert caught(mutation, seen), seen
    assert seen.output_right or not mutation.silent


@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if s != "lockstep"])
@pytest.mark.parametrize("name", [m.name for m in MUTATIONS if m.silent])
def test_silent_mistakes_are_caught_in_every_order(name: str, schedule: str) -> None:
    assert caught(BY_NAME[name], catch(BY_NAME[name], schedule))


def test_a_deadlock_names_the_barrier_and_what_it_lacks() -> None:
    wrong_bytes = HopperMutation("", "TX_ERROR=64", "")
    message = catch(wrong_bytes).deadlock
    assert "attention cannot go on" in message
    assert "0 of 1 arrivals pending, 64 transaction bytes expected, 0 in flight" in message
    assert "2 of 2 arrivals pending" in message
