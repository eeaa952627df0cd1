# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted in the backward pass of wide heads: each is found, or gives wrong gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from flash_attention.launch.plan import Plan
from flash_attention_workbench.mends import NUMBERS
from ptx_emulator.report.mends import DEADLOCK
from tests.backward_cases import backward_of
from tests.emulator.edits import Edit
from tests.emulator.gate import first_of_each_kind
from tests.families.sm90.planted import kinds_caught_in_gradients
from tests.feature_cases import Case

pytestmark = pytest.mark.slow  # left out of `make quick`

FOLDER = "sm90/wide_backward"
TILE, PRODUCER = f"{FOLDER}/score_tile.cuh", f"{FOLDER}/score_producer.cuh"
SCORES, KEYS = f"{FOLDER}/scores.cuh", f"{FOLDER}/keys.cuh"
QUERY_ROWS, PREPARE = "sm90/backward/query_rows.cuh", "backward/prepare.cuh"
PLAIN = Case("", 140, 330, 264, 264, heads=2, heads_k=1, causal=True)
PACKED = Case("", (70, 20), (70, 40), 264, 264, heads=1, heads_k=1, padding=3)
WIDEST = Case("", 70, 70, 264, 320, heads=1, heads_k=1)


@dataclass(frozen=True)
class Mutation:
    """A mistake in a kernel, and the kind of finding that tells of it."""

    name: str
    caught_by: str
    edit: Edit
    case: Case = PLAIN


MUTATIONS = [
    Mutation("slices are not waited for", DEADLOCK, Edit(SCORES, "Smem::pipeline().wait(ring_);")),
    Mutation(
        "slices are loaded over those that are read",
        DEADLOCK,
        Edit(PRODUCER, "Smem::pipeline().acquire(ring_);"),
    ),
    Mutation(
        "slices are released while they are read", "race", Edit(SCORES, "ptx::wgmma_wait<1>();")
    ),
    Mutation(
        "panels do not wait for P", "race", Edit(SCORES, "sync_warpgroup(warpgroup_);", nth=1)
    ),
    Mutation(
        "dS is written over P that leaves",
        "race",
        Edit(SCORES, "if (leads()) ptx::bulk_wait_read<0>();"),
    ),
    Mutation(
        "copies do not see P",
        "missing-proxy-fence",
        Edit(SCORES, "ptx::fence_proxy_async();"),
    ),
    Mutation(
        "no key is hidden", NUMBERS, Edit(TILE, "tile.key + kTileKeys > range.end_first", "false")
    ),
    Mutation(
        "tiles are left out",
        "uninitialised-global",
        Edit(TILE, "tile.key < range.end_last", "tile.key + kTileKeys < range.end_last"),
    ),
    Mutation(
        "P is where dS is",
        NUMBERS,
        Edit(
            SCORES,
            "store_panels(tile, args_.part_heads * args_.heads_per_kv);",
            "store_panels(tile, 0);",
        ),
    ),
    Mutation(
        "dV is that of one head",
        NUMBERS,
        Edit(KEYS, "work_.head() + h,", "work_.head(),"),
    ),
    Mutation(
        "dK is not scaled",
        NUMBERS,
        Edit(KEYS, "work_.values ? 1.f : args.softmax_scale", "1.f"),
    ),
    Mutation(
        "queries of the next sequence are multiplied",
        NUMBERS,
        Edit(KEYS, "if (Config::Lengths::kPerBatch) clear_tail();"),
        PACKED,
    ),
    Mutation(
        "dQ has the first columns twice",
        NUMBERS,
        Edit(QUERY_ROWS, "Config::kPasses == 1 ? 0 : blockIdx.x", "Config::kPasses == 1 ? 0 : 0"),
    ),
    Mutation(
        "delta is that of the first columns",
        NUMBERS,
        Edit(PREPARE, "if (has(c)) sum", "if (has(c) && c < 1) sum"),
        WIDEST,
    ),
]


@pytest.mark.parametrize("mutation", first_of_each_kind(MUTATIONS))
def test_a_mistake_is_caught(mutation: Mutation, tmp_path: Path) -> None:
    call = backward_of(mutation.case.make())
    if rows := mutation.case.padding:
        call.do[-rows:] = math.nan
    caught = kinds_caught_in_gradients(mutation.edit, tmp_path, Plan(call), call)
    assert mutation.caught_by in caught
