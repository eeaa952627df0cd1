# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted in the conversion of keys and values: each is found, or gives wrong numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan
from flash_attention_workbench.mends import NUMBERS
from ptx_emulator.report.mends import DEADLOCK
from tests.emulator.edits import Edit
from tests.emulator.gate import first_of_each_kind
from tests.families.sm90.forward.cases_8_bit import Case, assert_right
from tests.families.sm90.planted import kinds_caught

pytestmark = pytest.mark.slow  # left out of `make quick`

CONVERTER, DESCALE = "sm90/roles/converting.cuh", "sm90/descale.cuh"
CASE = Case(140, 430, heads=4, heads_k=2)
IN_BLOCKS = Case(140, 400, heads=1, heads_k=1, d=160, blocks=4)
# FP8 kernels are not chosen for batch_invariant, so that Q, K and V are converted.
PACKED = Case(
    *(2, 432, 4, 2, 2),
    page=12,
    used=(90, 430),
    lengths_q=(70, 140),
    q_8_bit=True,
    keywords=(("batch_invariant", True),),
)


@dataclass(frozen=True)
class Mutation:
    """A mistake in a kernel, and the kind of finding that tells of it."""

    name: str
    caught_by: str
    edit: Edit
    case: Case = CASE


MUTATIONS = [
    Mutation(
        "what is converted has not arrived",
        "race",
        Edit(CONVERTER, "from.wait(ring_);"),
    ),
    Mutation(
        "the consumers still read what is overwritten",
        "race",
        Edit(CONVERTER, "to.acquire(ring_);"),
    ),
    Mutation(
        "the products do not see what was written",
        "missing-proxy-fence",
        Edit(CONVERTER, "ptx::fence_proxy_async();"),
    ),
    Mutation(
        "a warp passes a tile on before its lanes are done",
        "race",
        Edit(CONVERTER, "__syncwarp();"),
    ),
    Mutation(
        "where keys and values land is never empty again",
        DEADLOCK,
        Edit(CONVERTER, ", from.empty(ring_.stage)"),
    ),
    Mutation(
        "keys are passed on by one warp of three",
        DEADLOCK,
        Edit(CONVERTER, "if (lane_id() == 0)", "if (threadIdx.x == kWarpSize)"),
    ),
    Mutation(
        "the later numbers of a chunk are the earlier ones",
        NUMBERS,
        Edit(CONVERTER, "low(bytes >> 16)", "low(bytes)"),
    ),
    Mutation(
        "the factor of V is that of K",
        NUMBERS,
        Edit(DESCALE, "factor(args.v_descale,", "factor(args.k_descale,"),
    ),
    Mutation(
        "all heads have the factor of the first",
        NUMBERS,
        Edit(DESCALE, " + kv_head * stride.head"),
    ),
    Mutation(
        "a key block has the factor of its first key",
        NUMBERS,
        Edit(DESCALE, "row < rows_of_first_ ? first_ : second_", "first_"),
        IN_BLOCKS,
    ),
    Mutation(
        "blocks of keys are counted from the last key",
        NUMBERS,
        Edit(DESCALE, "first_key / kKeys)", "last_key / kKeys)"),
        IN_BLOCKS,
    ),
    Mutation(
        "Q is overwritten while it is read",
        "race",
        Edit(CONVERTER, "converted_.q_pipeline().acquire(w, parity);"),
        PACKED,
    ),
    Mutation(
        "Q is passed on by nobody",
        DEADLOCK,
        Edit(CONVERTER, "pass_on(converted_.q_pipeline().full(w));"),
        PACKED,
    ),
    Mutation(
        "all sequences have the queries of the first",
        NUMBERS,
        Edit(CONVERTER, "(sequence.q_first + position)", "position"),
        PACKED,
    ),
    Mutation(
        "the factor of Q is left out",
        NUMBERS,
        Edit(DESCALE, "if (args.q_descale)", "if (false)"),
        PACKED,
    ),
]


@pytest.mark.parametrize("mutation", first_of_each_kind(MUTATIONS))
def test_the_mistake_is_caught_as_predicted(mutation: Mutation, tmp_path: Path) -> None:
    call = mutation.case.call()
    right = partial(assert_right, call)
    assert mutation.caught_by in kinds_caught(mutation.edit, tmp_path, Plan(call), call, right)


@pytest.mark.parametrize("case", [CASE, IN_BLOCKS, PACKED], ids=["whole", "in blocks", "packed"])
def test_without_a_mistake_nothing_is_found(case: Case) -> None:
    call = case.call()
    result = emulate_plan(Plan(call), call, Settings())
    assert not result.findings
    assert_right(call, result.output, result.lse)
