# SPDX-License-Identifier: Apache-2.0
"""Every planted mistake is caught, by what it was predicted to be caught by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from flash_attention.emulator import SCHEDULES
from flash_attention.tools.bench.blocks import marked_block
from tests.emulator import hopper_mutations, short_mutations
from tests.emulator.ampere_mutations import MUTATIONS, NEEDLESS_BARRIER, Mutation
from tests.emulator.hopper_mutations import HopperMutation
from tests.emulator.mutations import HOPPER_MARKER, MARKER, SHORT_MARKER, catch, caught
from tests.emulator.scenes import Scene, attempt
from tests.emulator.short_mutations import SCENES, ShortMutation

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "emulator.md"
BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}


@pytest.mark.parametrize("name", BY_NAME)
def test_the_mistake_is_caught_as_predicted(name: str, tmp_path: Path) -> None:
    seen = catch(BY_NAME[name], tmp_path)
    assert caught(BY_NAME[name], seen), seen
    assert seen.output_right == BY_NAME[name].silent


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_a_mistake_nothing_is_caught(schedule: str, tmp_path: Path) -> None:
    clean = Mutation("none", "", 16)
    seen = catch(clean, tmp_path, schedule)
    assert seen.kinds == frozenset()
    assert seen.output_right


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_barrier_that_orders_nothing_is_not_missed(schedule: str, tmp_path: Path) -> None:
    seen = catch(NEEDLESS_BARRIER, tmp_path, schedule)
    assert seen.kinds == frozenset()
    assert seen.output_right


@pytest.mark.parametrize("mutation", short_mutations.MUTATIONS, ids=lambda m: m.name)
def test_a_mistake_with_short_queries_is_caught_as_predicted(mutation: ShortMutation) -> None:
    seen = short_mutations.catch(mutation)
    assert caught(mutation, seen), seen
    assert seen.output_right == mutation.silent


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("scene", SCENES, ids=range(len(SCENES)))
def test_without_a_mistake_nothing_is_caught_in_a_scene(
    scene: Scene, schedule: str, tmp_path: Path
) -> None:
    seen = attempt(scene, (), tmp_path, schedule)
    assert seen.kinds == frozenset()
    assert seen.output_right


@pytest.mark.parametrize(
    ("marker", "mutations"),
    [
        (MARKER, MUTATIONS),
        (HOPPER_MARKER, hopper_mutations.MUTATIONS),
        (SHORT_MARKER, short_mutations.MUTATIONS),
    ],
)
def test_the_documented_tables_list_these_mistakes(
    marker: str, mutations: Sequence[Mutation | HopperMutation | ShortMutation]
) -> None:
    lines = marked_block(DOCUMENT.read_text(), marker).splitlines()[3:-1]
    rows = [line.strip("| ").split(" | ") for line in lines]
    assert [(row[0], row[-3]) for row in rows] == [(m.name, m.caught_by) for m in mutations]
    assert all(row[-1] == "right" for row, m in zip(rows, mutations, strict=True) if m.silent)
