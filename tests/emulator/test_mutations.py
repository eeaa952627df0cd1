# SPDX-License-Identifier: Apache-2.0
"""Every planted mistake is caught, by what it was predicted to be caught by."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.render.blocks import marked_block
from ptx_emulator import SCHEDULES
from tests.emulator import ampere_mutations, decode_mutations, hopper_mutations
from tests.emulator.gate import first_of_each_kind
from tests.emulator.mutations import TABLES
from tests.emulator.planting import Mutation, catch, caught
from tests.gate import one_in

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "emulator.md"
MUTATIONS = [
    parameter for mutations in TABLES.values() for parameter in first_of_each_kind(mutations)
]
HOPPER = (*hopper_mutations.MUTATIONS, *decode_mutations.MUTATIONS)
SCENES = (ampere_mutations.rung(16), *dict.fromkeys(mutation.scene for mutation in HOPPER))


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_mistake_is_caught_as_predicted(mutation: Mutation) -> None:
    seen = catch(mutation)
    assert caught(mutation, seen), seen
    assert seen.output_right == mutation.silent


SILENT = first_of_each_kind(m for m in hopper_mutations.MUTATIONS if m.silent)
ORDERS = [s for s in SCHEDULES if s != "lockstep"]


@pytest.mark.parametrize(
    ("mutation", "schedule"),
    [
        pytest.param(
            *(*silent.values, order),
            id=f"{silent.id}-{order}",
            marks=silent.marks if turn == place % len(ORDERS) else pytest.mark.mutations,
        )
        for place, silent in enumerate(SILENT)
        for turn, order in enumerate(ORDERS)
    ],
)
def test_silent_mistakes_are_caught_in_every_order(mutation: Mutation, schedule: str) -> None:
    assert caught(mutation, catch(mutation, schedule))


@pytest.mark.parametrize("number", one_in(3, range(len(SCENES))))
def test_without_a_mistake_nothing_is_caught(number: int) -> None:
    scene, schedule = SCENES[number], SCHEDULES[number % len(SCHEDULES)]
    seen = catch(Mutation("none", "", scene), schedule)
    assert seen.kinds == frozenset()
    assert seen.output_right


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_barrier_that_orders_nothing_is_not_missed(schedule: str) -> None:
    seen = catch(ampere_mutations.NEEDLESS_BARRIER, schedule)
    assert seen.kinds == frozenset()
    assert seen.output_right


def test_a_deadlock_names_the_barrier_and_what_it_lacks() -> None:
    refusal = catch(hopper_mutations.TOO_MANY_BYTES).refusal
    assert re.search(r"flash_forward_kernel_hopper_\w+ cannot go on", refusal)
    assert "0 of 1 arrivals pending, 64 transaction bytes expected, 0 in flight" in refusal
    assert "8 of 8 arrivals pending" in refusal


@pytest.mark.parametrize("marker", TABLES)
def test_the_documented_tables_list_these_mistakes(marker: str) -> None:
    lines = marked_block(DOCUMENT.read_text(), marker).splitlines()[3:-1]
    rows = [line.strip("| ").split(" | ") for line in lines]
    mutations = TABLES[marker]
    assert [(row[0], row[-3]) for row in rows] == [(m.name, m.caught_by) for m in mutations]
    assert all(row[-1] == "right" for row, m in zip(rows, mutations, strict=True) if m.silent)
