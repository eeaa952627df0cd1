# SPDX-License-Identifier: Apache-2.0
"""Mistakes for short queries, split-KV and packed sequences, and what has to catch each."""

from __future__ import annotations

from dataclasses import replace

from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from flash_attention_workbench.mends import NUMBERS
from ptx_emulator.report.mends import DEADLOCK
from tests.emulator.edits import Edit
from tests.emulator.planting import Mutation, Scene
from tests.feature_cases import Case

CONFIG = HopperForwardKernelConfig(*(DType.BF16, 64, 1, 64, 2), tma=True, specialised=True)
COUNTED = replace(CONFIG, tile_order=TileOrder.DYNAMIC)  # of sequences of their own lengths
PAIR = replace(COUNTED, consumers=2, overlap=True)

# Three sequences, the last without a key: six tiles of four blocks.
FEW = Case("", 3, 200, batch=3, used=(200, 129, 0), heads=8, causal=True)
# In the last tile of a sequence the second warpgroup has no rows, or sees one block more.
CACHE = Case("", (100, 1, 130), 150, batch=3, used=(150, 3, 77), heads=2, causal=True)

EVENLY = Scene(FEW, CONFIG, ctas=5)  # five blocks each: every border is another tile's
CHUNKS = Scene(FEW, CONFIG, split_keys=64)
AT_ONCE = replace(EVENLY, one_launch=True)
MANY_ROWS = Scene(Case("", 16, 130, heads=4, heads_k=1), CONFIG, split_keys=64, one_launch=True)
SINKS = Scene(replace(FEW, sinks=True), CONFIG, split_keys=64)
WIDE = Scene(Case("", 2, 130, 256, 256, 2, 1), replace(CONFIG, d_head=256), split_keys=64)
NARROW = Scene(Case("", 3, 200, d_v=40, heads=8), CONFIG, split_keys=64)
TOGETHER = Scene(Case("", 3, 200, d_v=40, batch=2, heads=8), CONFIG, heads_together=True)
FAR_APART = Scene(  # the first rows see none of the last split's one block, the last all
    Case("", 192, 192, heads=1, heads_k=1, causal=True), replace(CONFIG, consumers=3), split_keys=64
)
OWN_PLACE = replace(FAR_APART, case=replace(FAR_APART.case, causal=False, window=(0, 0)))
FREE = Scene(CACHE, PAIR)
IN_TURN = Scene(CACHE, replace(PAIR, ping_pong=True))
SERIAL = Scene(CACHE, replace(PAIR, overlap=False))
ONE_STAGE = Scene(
    Case("", (130, 100, 130), (200, 150, 130), heads=2, heads_k=1, causal=True),
    replace(PAIR, overlap=False, stages=1),
)
GROUPS = Scene(  # two of the three heads stay in L2, if their keys were that long
    Case("", (100, 70), (100, 90), heads=3, heads_k=3),
    replace(COUNTED, group_mib=1),
    max_seqlen_k=2000,
)
SHARED = Scene(Case("", (100, 70), (100, 90), heads=4, heads_k=1), COUNTED)


EVEN = FIXED = KEY_PARTS = "sm90/splits.cuh"
DEALT, PACKED = "sm90/tile_order.cuh", "sm90/tile_order.cuh"
COMBINE, DIRECT = "sm90/combine.cuh", "sm90/output.cuh"
COMBINED_ROW, COMBINED = "sm90/combined_row.cuh", "sm90/output/combined.cuh"
WARP_OUTPUT, MEMORY, CONSUMER = (
    f"sm90/{name}.cuh" for name in ("warp_output", "shared_memory", "consumer")
)
VERBS, IN_STEP = "sm90/verbs.cuh", "void serial_step("
OVERLAPPED = "sm90/schedule/overlapped.cuh"
CLEAR_TAIL, RELEASE_K, RELEASE_V = "c.clear_tail();", "c.release_k();", "c.release_v();"
WAIT_SCORES = "c.template wait_products<0>();  // S is complete"
WAIT_V = "wait_v();  // V has arrived\n"
PASS_V = f"{WAIT_V}      release_v();"

CUTS = (
    Mutation(
        "splits of two tiles share a partial result",
        NUMBERS,
        EVENLY,
        (Edit(EVEN, "return tile + split;", "return split;"),),
    ),
    Mutation(
        "the last split of a tile is not combined",
        NUMBERS,
        EVENLY,
        (Edit(EVEN, "/ args.split_blocks + 1;", "/ args.split_blocks;"),),
    ),
    Mutation(
        "blocks are counted from those of the first tile",
        NUMBERS,
        EVENLY,
        (Edit(EVEN, " - tile * args.key_blocks;", ";"),),
    ),
    Mutation(
        "a CTA leaves out its last tile",
        "uninitialised-global",
        EVENLY,
        (Edit(DEALT, "/ args.key_blocks + 1,", "/ args.key_blocks,"),),
    ),
    Mutation(
        "a CTA computes one tile too many",
        "cta-write-conflict",
        EVENLY,
        (Edit(DEALT, "/ args.key_blocks + 1,", "/ args.key_blocks + 2,"),),
    ),
    Mutation(
        "the last CTA continues after the last tile",
        "global-out-of-bounds",
        EVENLY,
        (Edit(DEALT, "num_tiles<Config>(args)", "1 << 30"),),
        silent=True,
    ),
    Mutation(
        "two splits share a partial result",
        "cta-write-conflict",
        CHUNKS,
        (Edit(FIXED, "tile * count(args) + split", "tile + split"),),
    ),
    Mutation(
        "more blocks are skipped than a split has, before the visible ones",
        DEADLOCK,
        FAR_APART,
        (
            Edit(
                KEY_PARTS,
                "within(range.end_block(), tile, split, args)",
                "min(range.end_block(), (split + 1) * args.split_blocks)",
            ),
        ),
    ),
    Mutation(
        "more blocks are skipped than a split has, after the visible ones",
        DEADLOCK,
        OWN_PLACE,
        (
            Edit(
                KEY_PARTS,
                "within(range.first_block(), tile, split, args)",
                "max(range.first_block(), split * args.split_blocks)",
            ),
        ),
    ),
    Mutation(
        "the last, smaller group of heads is treated as a full one",
        "cta-write-conflict",
        GROUPS,
        (Edit(PACKED, "min(group_, heads_ - first_head)", "group_"),),
    ),
    Mutation(
        "rows of heads that share a tile are counted as those of one head",
        NUMBERS,
        SHARED,
        (Edit(PACKED, "batch) * Config::Rows::kGroup", "batch)"),),
    ),
)

PARTS = (
    Mutation(
        "the sink is missing from the combined sum",
        NUMBERS,
        SINKS,
        (Edit(COMBINED_ROW, " + weight_of(sink, offset)"),),
    ),
    Mutation(
        "weights are relative to -inf",
        NUMBERS,
        CHUNKS,
        (Edit(COMBINED_ROW, "max == -attn::kInfinity ? 0.f : max", "max"),),
    ),
    Mutation(
        "no barrier before the sums of the warps are added",
        "race",
        CHUNKS,
        (Edit(COMBINE, "  __syncthreads();  // the sums", "  // the sums"),),
        silent=True,
    ),
    Mutation(
        "only the first 128 columns are combined",
        NUMBERS,
        WIDE,
        (Edit(COMBINE, "kChunks = Config::kColumns / Row::kColumns", "kChunks = 1"),),
    ),
    Mutation(
        "rows of partial results are 128 columns apart",
        "global-out-of-bounds",
        NARROW,
        (Edit(COMBINED_ROW, "(split) * args_.d_v", "(split) * kColumns"),),
    ),
    Mutation(
        "rows without a query are stored",
        "cta-write-conflict",
        CHUNKS,
        (Edit(WARP_OUTPUT, "if (!used(r)) continue;"),),
    ),
    Mutation(
        "columns beyond d_v are stored",
        "global-out-of-bounds",
        TOGETHER,
        (Edit(WARP_OUTPUT, "chunk < kChunks && column < args.d_v", "chunk < kChunks"),),
    ),
    Mutation(
        "heads are stored as positions",
        "cta-write-conflict",
        TOGETHER,
        (
            Edit(DIRECT, "args.o_stride.head", "args.o_stride.seq"),
            Edit(DIRECT, "args.o_stride.seq;", "args.o_stride.head;"),
        ),
    ),
)

BLOCKS = (
    Mutation(
        "no barrier after keys are cleared",
        "race",
        FREE,
        (Edit(MEMORY, "sync_consumers<Config>();"),),
        silent=True,
    ),
    Mutation(
        "no proxy fence after keys are cleared",
        "missing-proxy-fence",
        FREE,
        (Edit(MEMORY, "ptx::fence_proxy_async();"),),
        silent=True,
    ),
    Mutation(
        "one warpgroup clears keys, and the other does not wait for it",
        "race",
        FREE,
        (
            Edit(CONSUMER, "clear_keys<", "if (warpgroup_ == 0) clear_keys<"),
            Edit(MEMORY, "Config::kConsumers * kWarpgroupSize", "kWarpgroupSize"),
            Edit("sm90/shape.cuh", "Config::kConsumers * kWarpgroupSize", "kWarpgroupSize"),
        ),
        silent=True,
    ),
    Mutation(
        "keys are cleared after the products have read them",
        NUMBERS,
        replace(CHUNKS, config=replace(CONFIG, overlap=True)),
        (
            Edit(OVERLAPPED, CLEAR_TAIL),
            Edit(OVERLAPPED, f"{RELEASE_V}\n    }} else", f"{CLEAR_TAIL} {RELEASE_V}\n    }} else"),
        ),
    ),
    Mutation(
        "keys of every block are cleared",
        NUMBERS,
        SERIAL,
        (Edit(CONSUMER, "    tail_keys_ = 0;\n"),),
    ),
    Mutation(
        "K is released before the products have read it",
        "race",
        ONE_STAGE,
        (
            Edit(VERBS, RELEASE_K, after=IN_STEP),
            Edit(VERBS, WAIT_SCORES, f"{RELEASE_K} {WAIT_SCORES}"),
        ),
        silent=True,
    ),
    Mutation(
        "V of a skipped block is not released",
        DEADLOCK,
        FREE,
        (Edit(CONSUMER, PASS_V, WAIT_V),),
    ),
    Mutation(
        "the ping-pong barrier of a skipped block is not passed",
        DEADLOCK,
        IN_TURN,
        (
            Edit(
                CONSUMER,
                "      ping_pong_wait();  // the others wait for every arrival\n"
                "      ping_pong_arrive();\n",
            ),
        ),
    ),
    Mutation(
        "V is skipped before it has arrived",
        "race",
        ONE_STAGE,
        (Edit(CONSUMER, PASS_V, "release_v();"),),
        schedule="depth-first",
    ),
    Mutation(
        "a warpgroup without rows does not skip blocks",
        DEADLOCK,
        FREE,
        (
            Edit(
                CONSUMER,
                "    pass_blocks(whole_end - end);",
                "if (this->tile_row() < sequence_.q_len) pass_blocks(whole_end - end);",
            ),
        ),
    ),
)

LAUNCHES = (
    Mutation(
        "a CTA combines partial results that others have not stored",
        "uninitialised-global",
        AT_ONCE,
        (Edit(COMBINED, "< splits - 1) return false;", "< splits - 2) return false;"),),
        silent=True,
    ),
    Mutation(
        "no CTA is the last of a tile",
        "tile counter",
        AT_ONCE,
        (Edit(COMBINED, "< splits - 1) return false;", "< splits) return false;"),),
    ),
    Mutation(
        "the counter of a tile is not reset",
        "tile counter",
        AT_ONCE,
        (Edit(COMBINED, "    *arrived = 0;\n"),),
    ),
    Mutation(
        "tiles share a counter",
        "tile counter",
        AT_ONCE,
        (Edit(COMBINED, "tile_counter + tile * Config::kConsumers", "tile_counter"),),
    ),
    Mutation(
        "a CTA arrives at the counter without a fence behind its partial results",
        "cta-write-conflict",
        AT_ONCE,
        (Edit(COMBINED, "__threadfence();  // other CTAs", "// other CTAs"),),
        silent=True,
    ),
    Mutation(
        "a CTA arrives at the counter before its warps have stored",
        "cta-write-conflict",
        AT_ONCE,
        (
            Edit(
                COMBINED,
                "sync_warpgroup(consumer.warpgroup());  // all four warps have stored their part",
            ),
        ),
        silent=True,
    ),
    Mutation(
        "the last CTA loads partial results without a fence behind the counter",
        "cta-write-conflict",
        AT_ONCE,
        (Edit(COMBINED, "__threadfence();  // the last CTA sees the parts of all"),),
        silent=True,
    ),
    Mutation(
        "a warp reads whether it is the last before that is known",
        "race",
        AT_ONCE,
        (Edit(COMBINED, "sync_warpgroup(consumer.warpgroup());  // the answer is there"),),
        silent=True,
    ),
    Mutation(
        "a warp combines only its first row",
        NUMBERS,
        MANY_ROWS,
        (Edit(COMBINED, "r += kWarpgroupWarps", "r += kWarpgroupSize"),),
    ),
)

MUTATIONS = (*CUTS, *PARTS, *LAUNCHES, *BLOCKS)
