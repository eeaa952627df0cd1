# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted in the Hopper backward kernels: each is found, or gives wrong gradients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flash_attention.launch.emulation import Settings, emulate_backward_plan
from flash_attention.launch.plan import Plan
from tests.backward_cases import assert_right, backward_of
from tests.emulator.edits import Edit
from tests.emulator.gate import first_of_each_kind
from tests.families.sm90.backward.cases import config
from tests.families.sm90.planted import kinds_caught_in_gradients
from tests.feature_cases import Case

pytestmark = pytest.mark.slow  # left out of `make quick`

FOLDER = "sm90/backward"
KEYS, PRODUCER = f"{FOLDER}/key_warpgroup.cuh", f"{FOLDER}/producer.cuh"
OWN = f"{FOLDER}/query_gradient/own_warpgroup.cuh"
ORDERED, WRITER = f"{FOLDER}/query_gradient/ordered.cuh", f"{FOLDER}/sum_writer.cuh"
STORED = f"{FOLDER}/workspace.cuh"
DQ, QUERIES = f"{FOLDER}/query_product.cuh", f"{FOLDER}/queries.cuh"
PAIRED, STAGED = f"{FOLDER}/schedule/paired.cuh", f"{FOLDER}/staged_rows.cuh"
PRODUCTS = f"{FOLDER}/products.cuh"
FENCE, WGMMA_FENCE = "ptx::fence_proxy_async();", "ptx::wgmma_fence();"
SYNC = "__syncwarp();"
ADDED = config(64, derivative="pairs", schedule="paired")
IN_WORKSPACE = config(64, dq="workspace", schedule="paired")
IN_ORDER = config(64, dq="ordered", schedule="paired", order="dynamic_8")
CASE = Case("", 140, 330, heads=2, heads_k=1, causal=True)


@dataclass(frozen=True)
class Mutation:
    """A mistake in a kernel, and the kind of finding that tells of it."""

    name: str
    caught_by: str
    edit: Edit
    kernel: Any = ADDED


MUTATIONS = [
    Mutation(
        "dS is read before it is written",
        "deadlock",
        Edit(OWN, "Smem::ds_pipeline().wait(ds_);"),
    ),
    Mutation(
        "dS is written while it is read",
        "race",
        Edit(DQ, "Smem::ds_pipeline().acquire(ds_);"),
    ),
    Mutation("a product does not see dS", "missing-proxy-fence", Edit(DQ, FENCE)),
    Mutation("an addition does not see dQ", "missing-proxy-fence", Edit(DQ, FENCE, nth=1)),
    Mutation(
        "dQ is staged over what is being added",
        "race",
        Edit(OWN, "if (leads()) ptx::bulk_wait_read<Math::kPasses - 1>();"),
    ),
    Mutation(
        "dQ is added before all have staged it",
        "race",
        Edit(OWN, "sync_warpgroup(kIndex);  // everybody has written"),
    ),
    Mutation(
        "a stage of Q is never released",
        "deadlock",
        Edit(KEYS, "release(Smem::q_pipeline(), Stage);"),
    ),
    Mutation(
        "Q is not waited for",
        "race",
        Edit(KEYS, "Smem::q_pipeline().wait(Stage, parity_);"),
    ),
    Mutation(
        "the bytes of statistics are not counted",
        "deadlock",
        Edit(PRODUCER, "QueryTile::kBytes + Smem::kStatBytes);", "QueryTile::kBytes);"),
    ),
    Mutation(
        "a stage is loaded over while it is read",
        "deadlock",
        Edit(PRODUCER, "to.acquire(ring_);"),
    ),
    Mutation(
        "dP is read while it is computed",
        "wgmma-in-flight",
        Edit(PAIRED, "w.template wait_products<0>();"),
    ),
    Mutation("no fence before S", "wgmma-unfenced", Edit(PRODUCTS, WGMMA_FENCE)),
    Mutation("no fence behind P", "wgmma-unfenced", Edit(PRODUCTS, WGMMA_FENCE, nth=2)),
    Mutation("no fence before dQ", "wgmma-unfenced", Edit(DQ, WGMMA_FENCE)),
    Mutation(
        "no fence before dQ of stored dS",
        "wgmma-unfenced",
        Edit(QUERIES, WGMMA_FENCE),
        kernel=IN_WORKSPACE,
    ),
    Mutation("a lane hands dS over before the others wrote it", "race", Edit(DQ, SYNC)),
    Mutation(
        "a lane stores dS before the others wrote it",
        "intra-warp-race",
        Edit(STORED, SYNC, nth=1),
        kernel=IN_WORKSPACE,
    ),
    Mutation(
        "one lane waits for the stores of dS alone",
        "race",
        Edit(STORED, SYNC),
        kernel=IN_WORKSPACE,
    ),
    Mutation("a lane stores dK before the others wrote it", "intra-warp-race", Edit(STAGED, SYNC)),
    Mutation("one lane waits for the stores of dK alone", "race", Edit(KEYS, SYNC, nth=1)),
    Mutation(
        "a store does not see dK",
        "missing-proxy-fence",
        Edit(STAGED, FENCE, nth=1),
    ),
    Mutation(
        "queries are scored against one lse",
        "numbers",
        Edit(KEYS, "Smem::lse(Stage)", "Smem::lse(0)"),
    ),
    Mutation("no key is hidden", "numbers", Edit(KEYS, "if (hides)", "if (false)")),
    Mutation(
        "dK is not scaled",
        "numbers",
        Edit(KEYS, "store(dk_, args_.softmax_scale,", "store(dk_, 1.f,"),
    ),
    Mutation(
        "stored dS is overwritten while it is read",
        "race",
        Edit(STORED, "if (lane_id() == 0) ptx::bulk_wait_read<Config::kDsStages - 1>();"),
        kernel=IN_WORKSPACE,
    ),
    Mutation(
        "dS and K are not waited for",
        "deadlock",
        Edit(QUERIES, "Smem::pipeline().wait(ring_);"),
        kernel=IN_WORKSPACE,
    ),
    Mutation(
        "a stage of dS is released before it was read",
        "race",
        Edit(QUERIES, "ptx::wgmma_wait<1>();"),
        kernel=IN_WORKSPACE,
    ),
    Mutation(
        "a tile does not wait for its turn",
        "cta-write-conflict",
        Edit(WRITER, "if (!acquired_) ptx::wait_for_count(semaphore(), share_.rank);"),
        kernel=IN_ORDER,
    ),
    Mutation(
        "the turn passes on before the share is added",
        "cta-write-conflict",
        Edit(WRITER, "ptx::tma_wait();"),
        kernel=IN_ORDER,
    ),
    Mutation(
        "the turn never passes on",
        "deadlock",
        Edit(WRITER, "ptx::count_up(done);"),
        kernel=IN_ORDER,
    ),
    Mutation(
        "the first share is added to nothing",
        "uninitialised-global",
        Edit(WRITER, "ptx::bulk_store(", "ptx::bulk_add_f32("),
        kernel=IN_ORDER,
    ),
    Mutation(
        "a share is staged over the one that is being added",
        "race",
        Edit(WRITER, "ptx::bulk_wait_read<Math::kPasses - 1 - Part>();"),
        kernel=IN_ORDER,
    ),
    Mutation(
        "a share leaves before all have staged it",
        "race",
        Edit(ORDERED, "sync_warpgroup(kIndex);  // everybody has written, or dQ has left"),
        kernel=IN_ORDER,
    ),
    Mutation(
        "dQ is staged over the sum that others read",
        "race",
        Edit(ORDERED, "sync_warpgroup(kIndex);  // everybody has read"),
        kernel=IN_ORDER,
    ),
    Mutation(
        "the shares before are left out",
        "numbers",
        Edit(ORDERED, "Math::add_staged(sum, staged);"),
        kernel=IN_ORDER,
    ),
    Mutation(
        "dQ is overwritten while it is stored",
        "race",
        Edit(ORDERED, "if (lane_id() == 0) ptx::tma_wait_read();"),
        kernel=IN_ORDER,
    ),
]


@pytest.mark.parametrize("mutation", first_of_each_kind(MUTATIONS))
def test_a_mistake_is_caught(mutation: Mutation, tmp_path: Path) -> None:
    call = backward_of(CASE.make())
    plan = Plan(call, mutation.kernel)
    caught = kinds_caught_in_gradients(mutation.edit, tmp_path, plan, call)
    assert mutation.caught_by in caught


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel, id=str(kernel), marks=pytest.mark.mutations if kernel != ADDED else ())
        for kernel in (ADDED, IN_WORKSPACE, IN_ORDER)
    ],
)
def test_without_a_mistake_there_is_nothing_to_catch(kernel: Any) -> None:
    call = backward_of(CASE.make())
    result = emulate_backward_plan(Plan(call, kernel), call, Settings())
    assert result.findings == ()
    assert_right(result.gradients, call)
