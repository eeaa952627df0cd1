# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted in the kernels for wide heads: each is found, or gives wrong numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from flash_attention.launch.plan import Plan
from flash_attention_workbench.mends import NUMBERS
from ptx_emulator.report.mends import DEADLOCK
from tests.emulator.edits import Edit
from tests.emulator.gate import first_of_each_kind
from tests.families.sm90.planted import kinds_caught
from tests.families.sm90.wide.cases import MIDDLE, NARROW, sharp
from tests.feature_cases import Case

pytestmark = pytest.mark.slow  # left out of `make quick`

FOLDER = "sm90/wide"
CONSUMER, PRODUCER = f"{FOLDER}/consumer.cuh", f"{FOLDER}/producer.cuh"
SCHEDULE = f"{FOLDER}/schedule.cuh"
PIPELINE, SHARED_PRODUCER = "sm90/pipeline.cuh", "sm90/split_v/producer.cuh"
PLAIN = Case("", 70, 700, 128, 128, heads=2)
LENGTHS = Case("", 70, 320, 128, 128, heads=2, batch=2, used=(130, 200))


@dataclass(frozen=True)
class Mutation:
    """A mistake in a kernel, and the kind of finding that tells of it."""

    name: str
    caught_by: str
    edit: Edit
    case: Case = PLAIN


MUTATIONS = [
    Mutation(
        "K is not waited for",
        "race",
        Edit(CONSUMER, "smem_.k_pipeline().wait(half_, ring.parity, part);"),
    ),
    Mutation(
        "V is not waited for",
        "uninitialised-shared",
        Edit(CONSUMER, "smem_.v_pipeline().wait(half_, ring_.stage);"),
    ),
    Mutation(
        "the barriers of K do not alternate",
        "race",
        Edit(
            PIPELINE,
            "(stage * Parts + part)",
            "((Parts > 1 ? 0 : stage) * Parts + part)",
        ),
        Case("", 70, 320, 192, 128, heads=2),
    ),
    Mutation(
        "the producer does not wait until K was read",
        "race",
        Edit(
            PRODUCER,
            "ptx::mbarrier_wait(smem_.k_pipeline().empty(1 - ring_.stage, part),\n"
            "                       ring_.parity ^ (1 - ring_.stage));",
        ),
    ),
    Mutation(
        "the producer does not wait until V was read",
        "race",
        Edit(PRODUCER, "smem_.v_pipeline().acquire(half, ring_.stage);"),
    ),
    Mutation(
        "a part of K is released while it is read",
        "race",
        Edit(CONSUMER, "Base::template wait_products<1>();"),
        Case("", 70, 700, 256, 128, heads=2),
    ),
    Mutation("the last part of K is not released", DEADLOCK, Edit(SCHEDULE, "c.release_keys();")),
    Mutation(
        "P is written before the other warpgroup's was read",
        "race",
        Edit(
            SCHEDULE,
            "c.template wait_products<0>();  // O is complete, V and P of the block before were r",
            "// ",
        ),
    ),
    Mutation(
        "O is complete before it is rescaled",
        "wgmma-in-flight",
        Edit(SCHEDULE, "c.template wait_products<0>();            // O is complete, V was read"),
    ),
    Mutation(
        "the maxima of the other warpgroup are not followed",
        NUMBERS,
        Edit(SCHEDULE, "c.follow_maxima(c.o());"),
    ),
    Mutation(
        "keys beyond the last are multiplied",
        NUMBERS,
        Edit(CONSUMER, "Base::clear_tail(smem_.v(half_));"),
        LENGTHS,
    ),
    Mutation(
        "heads read the K of other heads",
        NUMBERS,
        Edit(SHARED_PRODUCER, "tile.head / args_.heads_per_kv", "tile.head"),
        Case("", 70, 70, 128, 128, heads=4, heads_k=2),
    ),
    Mutation(
        "both warpgroups load the same half of V",
        NUMBERS,
        Edit(PRODUCER, "half * T::kHalfColumns", "0"),
    ),
]


@pytest.mark.parametrize("mutation", first_of_each_kind(MUTATIONS))
def test_the_mistake_is_caught_as_predicted(mutation: Mutation, tmp_path: Path) -> None:
    made = sharp(mutation.case.make())
    call = made.call(return_lse=True)
    plan = Plan(call, NARROW if mutation.case.d_qk <= 128 else MIDDLE)
    kinds = kinds_caught(mutation.edit, tmp_path, plan, call, made.assert_right)
    assert mutation.caught_by in kinds
