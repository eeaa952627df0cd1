# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted in the MLA kernels: each is found, or gives wrong numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from flash_attention_workbench.mends import NUMBERS
from ptx_emulator.report.mends import DEADLOCK
from tests.emulator.edits import Edit
from tests.emulator.gate import first_of_each_kind
from tests.families.sm90.mla.cases import NARROW, Case
from tests.families.sm90.planted import kinds_caught

pytestmark = pytest.mark.slow  # left out of `make quick`

FOLDER, SHARED = "sm90/mla", "sm90/split_v"
CONSUMER, PRODUCER = f"{FOLDER}/consumer.cuh", f"{FOLDER}/producer.cuh"
SCHEDULE = f"{FOLDER}/schedule.cuh"
EXCHANGE, ROWS = f"{SHARED}/consumer.cuh", f"{SHARED}/rows.cuh"
ENTRY = f"{SHARED}/forward.cuh"
PLAIN = Case(2, 700, heads=24, sharp=True, causal=True)
STREAM_K = Case(2, 330, heads=128, batch=2, ctas=3, causal=True)
PACKED = Case(9, 200, batch=3, queries=(9, 5, 1), ctas=3, causal=True)
LENGTHS = Case(1, 320, batch=2, used=(130, 200), sharp=True)


@dataclass(frozen=True)
class Mutation:
    """A mistake in a kernel, and the kind of finding that tells of it."""

    name: str
    caught_by: str
    edit: Edit
    case: Case = PLAIN
    schedule: str = "lockstep"


NO_KEYS = Case(1, 64, batch=4, used=(0, 0, 0, 0), ctas=1)
MUTATIONS = [
    Mutation(
        "K is not waited for",
        "race",
        Edit(CONSUMER, "smem_.k_pipeline().wait(half_, ring.parity, part);"),
    ),
    Mutation(
        "P of the other warpgroup is not waited for",
        "race",
        Edit(EXCHANGE, "smem_.p_pipeline().wait(ring_);"),
    ),
    Mutation(
        "P is written without a fence between the proxies",
        "missing-proxy-fence",
        Edit(EXCHANGE, "ptx::fence_proxy_async();  // products see what this lane wrote"),
    ),
    Mutation(
        "the producer does not wait until K was read",
        "race",
        Edit(PRODUCER, "smem_.k_pipeline().acquire(ring_, part);"),
    ),
    Mutation(
        "a half of V is released before it was read",
        "race",
        Edit(
            SCHEDULE, "c.template wait_products<1>();         // O is complete, V and P were read"
        ),
    ),
    Mutation(
        "the rotary columns are not released",
        DEADLOCK,
        Edit(CONSUMER, "smem_.k_pipeline().release(ring_.stage, kRotaryPart);"),
    ),
    Mutation(
        "Q is not waited for",
        "race",
        Edit(EXCHANGE, "smem_.q_pipeline().wait(0, tile_parity_);"),
        STREAM_K,
    ),
    Mutation(
        "O is rescaled while a product adds to it",
        "wgmma-in-flight",
        Edit(SCHEDULE, "c.template wait_products<0>();            // O is complete, V was read"),
    ),
    Mutation(
        "the maxima of the other warpgroup are not followed",
        NUMBERS,
        Edit(SCHEDULE, "c.follow_maxima(c.o());"),
    ),
    Mutation(
        "O is not rescaled to the maxima of the other warpgroup",
        NUMBERS,
        Edit(EXCHANGE, "    attn::rescale_rows(o, stats_);\n"),
    ),
    Mutation(
        "each warpgroup keeps its own sums",
        NUMBERS,
        Edit(EXCHANGE, "stats_.sum[0][0] += theirs.x;"),
    ),
    Mutation(
        "sums are read before they are written",
        "race",
        Edit(EXCHANGE, "sync_halves();  // both have written their sums"),
    ),
    Mutation(
        "sums of the next tile overwrite those that are read",
        "race",
        Edit(EXCHANGE, "sync_halves();  // both have read them"),
        NO_KEYS,
        schedule="random",
    ),
    Mutation(
        "keys beyond the last are multiplied",
        NUMBERS,
        Edit(CONSUMER, "Base::clear_tail(VTile(smem_.k(half_).address));"),
        LENGTHS,
    ),
    Mutation(
        "CTAs that share a tile have the same heads",
        NUMBERS,
        Edit(ROWS, "blockIdx.y * Shape<Config>::kRows", "0"),
        STREAM_K,
    ),
    Mutation(
        "tiles of packed queries have no room for a last one that is not full",
        NUMBERS,
        Edit("attn/sequence.cuh", " + static_cast<i64>(sequence) * (Rows - 1)"),
        PACKED,
    ),
    Mutation(
        "packed queries of a sequence start where those of the batch do",
        NUMBERS,
        Edit("sm90/output_row.cuh", "args.cu_seqlens_q[batch] + position", "position"),
        PACKED,
    ),
    Mutation(
        "both halves of O are stored in the same columns",
        NUMBERS,
        Edit(EXCHANGE, "half_ * Math::kHalfColumns};", "0};"),
    ),
]


@pytest.mark.parametrize("mutation", first_of_each_kind(MUTATIONS))
def test_the_mistake_is_caught_as_predicted(mutation: Mutation, tmp_path: Path) -> None:
    made = mutation.case.make(NARROW.d_v)
    plan, right = made.plan(NARROW), made.assert_right
    kinds = kinds_caught(mutation.edit, tmp_path, plan, made.call, right, mutation.schedule)
    assert mutation.caught_by in kinds
