# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted in the FP8 kernels: each is found, or gives wrong numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig
from flash_attention.launch.plan import Plan
from flash_attention_workbench.mends import NUMBERS
from ptx_emulator.report.mends import DEADLOCK
from tests.emulator.edits import Edit
from tests.emulator.gate import first_of_each_kind
from tests.families.sm90.fp8.cases import LINEAR, OVERLAPPED, SERIAL, Case, assert_right
from tests.families.sm90.fp8.transposed_cases import OVERLAPPED_T, SERIAL_T
from tests.families.sm90.planted import kinds_caught

pytestmark = pytest.mark.slow  # left out of `make quick`

FOLDER = "sm90/fp8"
CONSUMER, PRODUCER = f"{FOLDER}/consumer.cuh", f"{FOLDER}/producer.cuh"
EVERY, POWERS = f"{FOLDER}/promotion.cuh", f"{FOLDER}/powers.cuh"
STEP = f"{FOLDER}/schedule/overlapped.cuh"
TRANSPOSE, TRANSPOSED = f"{FOLDER}/transpose.cuh", f"{FOLDER}/values/transposed.cuh"
EXPECTED = "arrive_expect(full, VTile::kLoadedBytes"
CASE = Case(200, 700, heads=2, heads_k=2, sharp=True)
LENGTHS = Case(140, 330, batch=2, keywords=(("seqused_k", (299, 72)), ("causal", True)))


@dataclass(frozen=True)
class Mutation:
    """A mistake in a kernel, and the kind of finding that tells of it."""

    name: str
    caught_by: str
    edit: Edit
    config: HopperFp8KernelConfig = OVERLAPPED
    case: Case = CASE


MUTATIONS = [
    Mutation(
        "K is not waited for",
        "race",
        Edit(CONSUMER, "smem_.k_pipeline().wait(k_);"),
    ),
    Mutation(
        "V is not waited for",
        "race",
        Edit(CONSUMER, "smem_.v_pipeline().wait(v_);"),
    ),
    Mutation(
        "the producer does not wait until V was read",
        "race",
        Edit(PRODUCER, "smem_.v_pipeline().acquire(ring_);"),
    ),
    Mutation(
        "too many bytes of V are expected",
        DEADLOCK,
        Edit(PRODUCER, EXPECTED, f"{EXPECTED} + 16"),
    ),
    Mutation(
        "O is read while a product adds to it",
        "wgmma-in-flight",
        Edit(STEP, "c.template wait_products<0>();  // O is complete, V and P were read"),
    ),
    Mutation(
        "Q is released before it arrives",
        DEADLOCK,
        Edit(CONSUMER, "smem_.q_pipeline().wait(q_ring_);"),
    ),
    Mutation(
        "the bytes of V are in the order of the keys",
        NUMBERS,
        Edit(TRANSPOSE, "0x6420", "0x6240"),
    ),
    Mutation(
        "the columns of V are not in the order of the output",
        NUMBERS,
        Edit(TRANSPOSE, "0x7531", "0x6420"),
    ),
    Mutation(
        "a weight that is too large is not seen",
        NUMBERS,
        Edit(POWERS, "return (bytes & 0x80808080) != 0;", "return false;"),
    ),
    Mutation(
        "a linear weight that is too large is not seen",
        NUMBERS,
        Edit(POWERS, "kHalf1024 + 0x78;", "0xffff;"),
        LINEAR,
    ),
    Mutation(
        "a linear weight below the smallest is not cut off",
        NUMBERS,
        Edit(POWERS, "ptx::max_f16x2(codes, kHalf1024 << 16 | kHalf1024)", "codes"),
        LINEAR,
    ),
    Mutation(
        "sums stay in the accumulators",
        NUMBERS,
        Edit(POWERS, "sums[2 * h] *= zero;"),
    ),
    Mutation(
        "the copy of O is not added at the end",
        NUMBERS,
        Edit(CONSUMER, "copy_.end(o_);"),
    ),
    Mutation(
        "the copy of O is not rescaled",
        NUMBERS,
        Edit(EVERY, "shrink_[0] *= stats.shrink[0][0];"),
    ),
    Mutation(
        "O is stored twice, in the copy and in the accumulators",
        NUMBERS,
        Edit(EVERY, "x -= dtype::Bf16::low(pair);"),
        SERIAL,
    ),
    Mutation(
        "the factor of V is that of K",
        NUMBERS,
        Edit(CONSUMER, "descale(args_.v_descale,", "descale(args_.k_descale,"),
    ),
    Mutation(
        "the keys of a block are loaded in their own order",
        NUMBERS,
        Edit(TRANSPOSED, "block * Config::kBC + odd, batch_", "block * Config::kBC, batch_"),
        OVERLAPPED_T,
    ),
    Mutation(
        "the weights of a lane are in the order of the accumulators",
        NUMBERS,
        Edit(TRANSPOSED, "interleaved(s.v[0][n],", "concatenated(s.v[0][n],"),
        OVERLAPPED_T,
    ),
    Mutation(
        "keys beyond the last are hidden as if they were in order",
        NUMBERS,
        Edit(TRANSPOSED, "16 * (j % kHalf) + 2 * e + j / kHalf", "8 * j + e"),
        OVERLAPPED_T,
    ),
    Mutation(
        "outputs are stored as if columns were in order",
        NUMBERS,
        Edit(TRANSPOSED, "interleaved(o.v[0][d],", "concatenated(o.v[0][d],"),
        OVERLAPPED_T,
    ),
    Mutation(
        "products may not see the rows for sums",
        "missing-proxy-fence",
        Edit(POWERS, "ptx::fence_proxy_async();  // products see the rows"),
        SERIAL_T,
    ),
    Mutation(
        "the rows for sums are expected of a load",
        DEADLOCK,
        Edit(TRANSPOSED, "Base::kCount * DHead *", "Base::kCount * (DHead + SumRows) *"),
        OVERLAPPED_T,
    ),
    Mutation(
        "what follows the keys of a sequence is multiplied",
        NUMBERS,
        Edit(TRANSPOSED, "clear_keys<Config>(tile, keys);"),
        OVERLAPPED_T,
        LENGTHS,
    ),
    Mutation(
        "the last keys of a sequence are cleared, too",
        NUMBERS,
        Edit(TRANSPOSED, "first_bytes(c.x, kept)", "0"),
        OVERLAPPED_T,
        LENGTHS,
    ),
    Mutation(
        "V is cleared before it is loaded",
        "race",
        Edit(TRANSPOSED, "wait();  // what is cleared has been loaded"),
        OVERLAPPED_T,
        LENGTHS,
    ),
    Mutation(
        "V is read before all consumers have cleared it",
        "race",
        Edit(TRANSPOSED, "sync_consumers<Config>();  // all have stored their zeros"),
        OVERLAPPED_T,
        LENGTHS,
    ),
    Mutation(
        "products may not see what was cleared",
        "missing-proxy-fence",
        Edit(TRANSPOSED, "ptx::fence_proxy_async();  // the products see the zeros"),
        OVERLAPPED_T,
        LENGTHS,
    ),
    Mutation(
        "a load overwrites the rows for sums",
        NUMBERS,
        Edit(
            TRANSPOSED,
            "odd * (Config::kDHead / 2) * VTile",
            "odd * (Config::kDHead / 2 + 8) * VTile",
        ),
        OVERLAPPED_T,
    ),
]


@pytest.mark.parametrize("mutation", first_of_each_kind(MUTATIONS))
def test_the_mistake_is_caught_as_predicted(mutation: Mutation, tmp_path: Path) -> None:
    case = replace(mutation.case, v_transposed=mutation.config.values_transposed)
    call = case.call(mutation.config.d_head)
    plan = Plan(call, mutation.config)
    right = partial(assert_right, call)
    assert mutation.caught_by in kinds_caught(mutation.edit, tmp_path, plan, call, right)
