# SPDX-License-Identifier: Apache-2.0
"""Mistakes for the sm_90a kernels: edits of their headers, and what has to catch each."""

from __future__ import annotations

from flash_attention.kernel_configs import DType
from flash_attention_workbench.mends import NUMBERS
from ptx_emulator.report.mends import DEADLOCK
from tests.emulator.edits import Edit
from tests.emulator.planting import TILE_COUNTER, Mutation, Scene, mutation_of
from tests.feature_cases import Case
from tests.hopper_configs import hopper_ladder

# Four tiles, for two CTAs where these are persistent; three blocks of keys for rings of two stages;
# queries and keys end within a block.
CASE = Case("", 200, 330, heads=2, heads_k=2)


def _rung(number: int) -> Scene:
    config = next(c for rung, c in hopper_ladder(DType.FP16, 64) if rung.number == number)
    return Scene(CASE, config, number)


TMA, PING_PONG, OWN_OUTPUT, LAST = _rung(18), _rung(21), _rung(24), _rung(29)

CONSUMER, PRODUCER = "sm90/consumer.cuh", "sm90/producer.cuh"
PRODUCTS, SHAPE, STAGING = "sm90/products.cuh", "sm90/shape.cuh", "sm90/warp_output.cuh"
ANNOUNCED = "arrive_expect(full, KVTile::kBytes"
EMPTY = "to.acquire(ring_);"
FULL_K = "smem_.wait_k(k_);"
RELEASED_V = "smem.v_pipeline().release(at);"
STORES_READ = "if (lane_id() == 0) ptx::tma_wait_read();"
HEIGHT = "kGroupBytes, Base::kRowBytes"

UNCOMMITTED_SCORES = Mutation(
    "no commit before the wait for S",
    "wgmma-in-flight",
    PING_PONG,
    (Edit(PRODUCTS, "ptx::wgmma_commit();"),),
    silent=True,
)
UNAWAITED_SCORES = mutation_of("unawaited-wgmma", "S is read while wgmma is in flight", LAST)
TOO_MANY_BYTES = mutation_of(
    "too-many-bytes", "64 transaction bytes too many are expected", PING_PONG
)

SPECIALISE = "sm90/roles/specialised.cuh"
GIVEN = "kGivenRegisters<Config>>()"
SHRINK = f"ptx::shrink_to<Config::kProducerRegisters + Config::kConsumers * {GIVEN}"
GROW = f"ptx::grow_to<Config::kConsumerRegisters - {GIVEN}"
SYNC, FENCE = "__syncwarp();", "ptx::wgmma_fence();"

MUTATIONS = (
    Mutation("K is not waited for", "race", PING_PONG, (Edit(CONSUMER, FULL_K),)),
    mutation_of("early-release", "V is released before wgmma has read it", LAST),
    mutation_of("missing-proxy-fence", "O is stored without a proxy fence", PING_PONG),
    UNAWAITED_SCORES,
    UNCOMMITTED_SCORES,
    Mutation(
        "no fence before the products of Q and K",
        "wgmma-unfenced",
        LAST,
        (Edit(PRODUCTS, FENCE),),
        silent=True,
    ),
    Mutation(
        "no fence between the weights and their product with V",
        "wgmma-unfenced",
        PING_PONG,
        (Edit(PRODUCTS, FENCE, nth=1),),
        silent=True,
    ),
    Mutation(
        "a lane stores O before the others have written it",
        "intra-warp-race",
        PING_PONG,
        (Edit(STAGING, SYNC, nth=1),),
        silent=True,
    ),
    Mutation(
        "one lane waits for the stores of O, and the others do not wait for it",
        "race",
        OWN_OUTPUT,
        (Edit("sm90/output.cuh", SYNC),),
        silent=True,
    ),
    Mutation(
        "wrong parity at the first wait for an empty buffer",
        DEADLOCK,
        PING_PONG,
        (Edit(PRODUCER, EMPTY, "to.acquire(ring_.stage, ring_.parity ^ 1);"),),
    ),
    TOO_MANY_BYTES,
    Mutation(
        "64 transaction bytes too few are expected",
        "mbarrier-transaction",
        PING_PONG,
        (Edit(PRODUCER, ANNOUNCED, f"{ANNOUNCED} - 64"),),
    ),
    Mutation(
        "the producer never waits for an empty buffer",
        "mbarrier-overflow",
        PING_PONG,
        (Edit(PRODUCER, EMPTY),),
    ),
    Mutation(
        "consumers arrive twice at the empty barrier",
        DEADLOCK,
        PING_PONG,
        (Edit("sm90/roles/specialised.cuh", RELEASED_V, f"{RELEASED_V} {RELEASED_V}"),),
    ),
    Mutation(
        "mbarriers are used without a barrier after their initialisation",
        "race",
        PING_PONG,
        (Edit(SPECIALISE, "__syncthreads();"),),
        silent=True,
    ),
    Mutation(
        "one arrival at a named barrier is missing",
        DEADLOCK,
        PING_PONG,
        (Edit("sm90/verbs.cuh", "if (warpgroup == Consumers - 1) arrive();"),),
    ),
    Mutation(
        "the producer gives up no registers",
        DEADLOCK,
        PING_PONG,
        (Edit(SPECIALISE, SHRINK),),
    ),
    Mutation(
        "consumers ask for more registers than the CTA has",
        DEADLOCK,
        LAST,
        (Edit(SPECIALISE, GROW, GROW.replace(">>()", "> + 8>()")),),
    ),
    Mutation(
        "the staging buffer of O is overwritten before it was read",
        "race",
        OWN_OUTPUT,
        (Edit("sm90/output.cuh", STORES_READ, after="struct OwnBuffer"),),
    ),
    Mutation(
        "the bulk stores of O are not committed",
        "race",
        OWN_OUTPUT,
        (Edit(STAGING, "ptx::tma_commit();"),),
    ),
    Mutation(
        "the kernel exits before O was read",
        "bulk-store-unwaited",
        OWN_OUTPUT,
        (Edit(CONSUMER, "if (lane_id() == 0) ptx::tma_wait();"),),
        silent=True,
    ),
    Mutation(
        "tiles are 128 bytes off the swizzle pattern",
        "wgmma-descriptor",
        TMA,
        (Edit("sm90/roles/unified.cuh", "q_tiles(base)", "q_tiles(base + 128)"),),
    ),
    Mutation(
        "wrong stride in the descriptors",
        NUMBERS,
        PING_PONG,
        tuple(Edit(SHAPE, HEIGHT, HEIGHT.replace(",", " / 2,")) for _ in range(2)),
    ),
    Mutation(
        "keys beyond the end are not masked",
        NUMBERS,
        LAST,
        (Edit("sm90/tile.cuh", "uniform(range_.hides(block_))", "false"),),
    ),
    Mutation(
        "the tile counter is not reset between launches",
        TILE_COUNTER,
        LAST,
        (Edit("sm90/tile_order.cuh", "counter_[0] = 0;"),),
    ),
)
