# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted in the sm_80 backward kernels: each is found, or gives wrong gradients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.call.dtype import DType
from flash_attention.families.sm80.backward.rungs import STEPS, base
from flash_attention.launch.emulation import Settings, emulate_backward_plan
from flash_attention.launch.plan import Plan
from tests.backward_cases import assert_right, backward_of
from tests.emulator.edits import Edit, compiler, edited_headers
from tests.emulator.gate import first_of_each_kind
from tests.feature_cases import Case

pytestmark = pytest.mark.slow  # left out of `make quick`

LAZY, EAGER, TWO_STAGES = (
    f"sm80/backward/schedule/{name}.cuh" for name in ("lazy", "eager", "two_stages")
)
BLOCK, KEYS = "sm80/backward/block.cuh", "sm80/backward/outer_loop/kv.cuh"
CONVERT = "backward/convert.cuh"
WAIT, SYNC = "b.template wait<0>();", "__syncthreads();"
SHARED_ROWS = {"register_operands": False, "column_warps": 2}
CASE = Case("", 200, 130, heads=2, heads_k=1, causal=True)


@dataclass(frozen=True)
class Mutation:
    """A mistake in the kernel of a rung, with changes of its config that let it show."""

    name: str
    caught_by: str
    rung: int
    edit: Edit
    changes: dict[str, Any] = field(default_factory=dict)
    case: Case = CASE


MUTATIONS = [
    Mutation("a block is not waited for, lazy", "race", 2, Edit(LAZY, WAIT)),
    Mutation("dS is read without a barrier, lazy", "race", 2, Edit(LAZY, SYNC, nth=1)),
    Mutation("a block is overwritten while it is read", "race", 5, Edit(EAGER, SYNC, nth=1)),
    Mutation("a block is not waited for, two stages", "race", 6, Edit(TWO_STAGES, WAIT)),
    Mutation("dS is overwritten while it is read", "race", 6, Edit(TWO_STAGES, SYNC)),
    Mutation("dS is read without a barrier", "race", 6, Edit(TWO_STAGES, "b.meet();")),
    Mutation(
        "the next block goes over this one",
        *("race", 6),
        Edit(TWO_STAGES, "b.load_visited(stage ^ 1, next)", "b.load_visited(stage, next)"),
    ),
    Mutation(
        "warps that share rows do not meet",
        *("race", 2),
        Edit("sm80/backward/operands.cuh", "b.meet_rows();"),
        SHARED_ROWS,
    ),
    Mutation(
        "a sum is staged over an operand in use",
        *("race", 9),
        Edit("sm80/backward/store.cuh", SYNC),
    ),
    Mutation(
        "a staged sum is stored without a barrier",
        *("race", 9),
        Edit("sm80/backward/store.cuh", SYNC, nth=1),
    ),
    Mutation(
        "dQ is not scaled alike",
        "numbers",
        9,
        Edit(CONVERT, "args.d_qk, args.softmax_scale", "args.d_qk, 1.f"),
    ),
    Mutation("dK is not scaled", "numbers", 9, Edit(BLOCK, "scope_.args().softmax_scale", "1.f")),
    Mutation("delta is left out", "numbers", 9, Edit(BLOCK, " - delta.of(i, e)")),
    Mutation(
        "the slope of a softcap is left out",
        *("numbers", 9),
        Edit(BLOCK, "Config::Score::slope(s_.v[i][j][e]) * "),
        case=replace(CASE, softcap=1.0),
    ),
    Mutation(
        "no query is hidden",
        *("numbers", 9),
        Edit(KEYS, "if (!range_.hides(place.row / Config::kVisitedRows)) return;", "return;"),
    ),
    Mutation(
        "keys beyond the last are read",
        *("numbers", 9),
        Edit("sm80/rows.cuh", "sequence.k_first, sequence.k_len,", "sequence.k_first, 128,"),
        case=Case("", 128, 128, heads=1, heads_k=1, used=(70,)),
    ),
    Mutation("a group has one head", "numbers", 9, Edit(KEYS, "{place.head + 1, ", "{1 << 20, ")),
]


@pytest.mark.parametrize("mutation", first_of_each_kind(MUTATIONS))
def test_a_mistake_is_caught(mutation: Mutation, tmp_path: Path) -> None:
    config = base(DType.BF16, 64)
    for _, _, change in STEPS[: mutation.rung - 1]:
        config = replace(config, **change)
    config = replace(config, **mutation.changes)
    call = backward_of(mutation.case.make())
    plan = Plan(call, config, ARCHES["sm_80"])
    edited = compiler(edited_headers([mutation.edit], tmp_path))
    result = emulate_backward_plan(plan, call, Settings(), compile_unit=edited)
    caught = {finding.kind for finding in result.findings}
    try:
        assert_right(result.gradients, call)
    except AssertionError:
        caught.add("numbers")
    assert mutation.caught_by in caught
