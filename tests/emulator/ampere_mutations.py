# SPDX-License-Identifier: Apache-2.0
"""Mistakes for the sm_80 kernels: an edit of one header each, and what has to catch it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from flash_attention.ladder import get_ladder
from flash_attention_workbench.mends import NUMBERS
from tests.emulator.edits import Edit
from tests.emulator.planting import Mutation, Scene, mutation_of
from tests.feature_cases import Case

CASE = Case("", 256, 256, 128, 128, heads=2, heads_k=2)


def rung(number: int, **changes: Any) -> Scene:
    """The exact kernel of a rung, with `changes` of its config that let a mistake show; a static
    stride is taken away, since V's rows differ."""
    config = get_ladder(DType.FP16, CASE.d_qk, CASE.heads)[number - 1].config
    assert isinstance(config, FlashForwardKernelConfig)
    return Scene(CASE, replace(config, static_row_stride=0, **changes), number, return_lse=False)


EAGER, LAZY = "sm80/schedule/eager.cuh", "sm80/schedule/lazy.cuh"
FORWARD, STORE = "sm80/forward.cuh", "sm80/store.cuh"
LOAD = "sm80/load.cuh"
SOFTMAX, PREDICATION = "attn/softmax.cuh", "sm80/predication.cuh"
WAIT_ALL, WAIT_ONE, SYNC = "b.template wait<0>();", "b.template wait<1>();", "__syncthreads();"
HELD_Q = {"Q_mma_load_K_tiles": 0}  # Q is read right behind its barrier
PLAIN = {"async_copy": False}

WAITS = (
    mutation_of("missing-wait", "K is not waited for", rung(2)),
    Mutation("V is not waited for", "race", rung(2), (Edit(LAZY, WAIT_ALL, nth=2),)),
    Mutation("Q is not waited for", "race", rung(1, **HELD_Q), (Edit(LAZY, WAIT_ALL),)),
    Mutation(
        "one copy group too many may be pending at Q",
        "race",
        rung(3, **HELD_Q),
        (Edit(EAGER, WAIT_ONE, "b.template wait<2>();"),),
    ),
    Mutation(
        "one copy group too many may be pending at K",
        "race",
        rung(16),
        (Edit(EAGER, WAIT_ALL, WAIT_ONE),),
    ),
    Mutation(
        "one copy group too many may be pending at V",
        "race",
        rung(9),
        (Edit(EAGER, WAIT_ALL, WAIT_ONE, nth=1),),
    ),
    Mutation(
        "the copies of V are not committed", "race", rung(3), (Edit(EAGER, "b.commit();", nth=2),)
    ),
    Mutation(
        "the copies of K are not committed", "race", rung(2), (Edit(LAZY, "b.commit();", nth=1),)
    ),
    Mutation(
        "a copy is still in flight at the end",
        "cp-async-unwaited",
        rung(12),
        (Edit(FORWARD, "Config::Store::run(*this);", "load_k(0); Config::Store::run(*this);"),),
        silent=True,
    ),
)

BARRIERS = (
    Mutation(
        "no barrier after the copy of Q",
        "race",
        rung(3, **HELD_Q),
        (Edit(EAGER, SYNC),),
        silent=True,
    ),
    mutation_of("missing-barrier", "no barrier between K's copy and its use", rung(8)),
    Mutation(
        "no barrier between V's copy and its use",
        "race",
        rung(16),
        (Edit(EAGER, SYNC, nth=2),),
        silent=True,
    ),
    Mutation(
        "no barrier after Q, lazy schedule",
        "race",
        rung(2, **HELD_Q),
        (Edit(LAZY, SYNC),),
        silent=True,
    ),
    Mutation(
        "no barrier after K, lazy schedule",
        "race",
        rung(2),
        (Edit(LAZY, SYNC, nth=1),),
        silent=True,
    ),
    Mutation(
        "no barrier after V, lazy schedule",
        "race",
        rung(1),
        (Edit(LAZY, SYNC, nth=2),),
        silent=True,
    ),
    Mutation(
        "plain copies of K are read without a barrier",
        "race",
        rung(2, **PLAIN),
        (Edit(LAZY, SYNC, nth=1),),
        silent=True,
    ),
    Mutation(
        "`__syncwarp` instead of `__syncthreads` at K",
        "race",
        rung(5),
        (Edit(EAGER, SYNC, "__syncwarp();", 1),),
        silent=True,
    ),
    Mutation(
        "`__syncwarp` instead of `__syncthreads` at V",
        "race",
        rung(13),
        (Edit(EAGER, SYNC, "__syncwarp();", 2),),
        silent=True,
    ),
    Mutation(
        "warp 0 skips a barrier",
        "race",
        rung(10),
        (Edit(EAGER, SYNC, "if (threadIdx.x >= 32) __syncthreads();", 1),),
    ),
    Mutation(
        "no `__syncwarp` between writing and reading O",
        "intra-warp-race",
        rung(11),
        (Edit(STORE, "__syncwarp();"),),
        silent=True,
    ),
)

ADDRESSES = (
    Mutation(
        "copies leave out the swizzle, and reads do not",
        NUMBERS,
        rung(2),
        (
            Edit(
                LOAD,
                "thread.at(r, c), source",
                "tile + (row + r) * Tile::kRowBytes + chunk * kChunkBytes, source",
            ),
        ),
    ),
    Mutation(
        "O is read back without the swizzle",
        NUMBERS,
        rung(12),
        (
            Edit(
                STORE,
                "Tile::offset(b.warp_row() + row, chunk)",
                "(b.warp_row() + row) * Tile::kRowBytes + chunk * kChunkBytes",
            ),
        ),
    ),
    mutation_of("one-row-too-far", "rows are loaded one too far", rung(4)),
    Mutation(
        "rows of O are stored one too far",
        "global-out-of-bounds",
        rung(14),
        (Edit(STORE, "b.output(row)", "b.output(row + 1)", after="struct Staged"),),
    ),
    Mutation(
        "one key block too many",
        "global-out-of-bounds",
        rung(6),
        (Edit(PREDICATION, "seq_len_k / Config::kBC;", "seq_len_k / Config::kBC + 1;"),),
    ),
    Mutation(
        "the next K is loaded after the last block",
        "global-out-of-bounds",
        rung(7),
        (Edit(EAGER, "if (step + 1 < b.num_steps())", "if (step < b.num_steps())"),),
        silent=True,
    ),
    Mutation(
        "rows are loaded from 8 bytes too far",
        "global-misaligned",
        rung(9),
        (Edit(LOAD, "+ (chunk + c) * kChunkBytes;", "+ (chunk + c) * kChunkBytes + 8;"),),
    ),
    Mutation(
        "the tiles start 8 bytes too far",
        "shared-misaligned",
        rung(2),
        (Edit(FORWARD, "q_tile_(smem)", "q_tile_(smem + 8)"),),
    ),
    Mutation(
        "too little shared memory is requested for V",
        "shared-out-of-bounds",
        rung(11),
        missing_smem_bytes=32 * 128 * 2,
    ),
    Mutation(
        "the tile of V overlaps that of K",
        "race",
        rung(3),
        (Edit(FORWARD, "v_tile_(k_tile_ + KVTile::kBytes)", "v_tile_(k_tile_)"),),
    ),
    Mutation(
        "two CTAs compute the same rows",
        "cta-write-conflict",
        rung(11),
        (
            Edit(
                PREDICATION,
                "return blockIdx.x * Config::kBR;",
                "return blockIdx.x / 2 * Config::kBR;",
            ),
        ),
    ),
    Mutation(
        "V is loaded with K's strides",
        NUMBERS,
        rung(2),
        (Edit(PREDICATION, "args_.v, args_.v_stride", "args_.v, args_.k_stride"),),
    ),
)

VALUES = (
    mutation_of("missing-load", "Q is never loaded", rung(3)),
    Mutation(
        "Q is loaded from the output",
        "uninitialised-global",
        rung(10),
        (Edit(PREDICATION, "args_.q, args_.q_stride", "args_.o, args_.o_stride"),),
    ),
    Mutation(
        "V is never loaded", "uninitialised-shared", rung(2), (Edit(LAZY, "b.load_v(step);"),)
    ),
    Mutation(
        "fragments of K are read with the lane map of V",
        NUMBERS,
        rung(8),
        (
            Edit(
                FORWARD,
                "lane_id() % 8 + lane_id() / 16 * 8, lane_id() / 8 % 2",
                "lane_id() % 16, lane_id() / 16",
            ),
        ),
    ),
    Mutation(
        "V is read without the transpose",
        NUMBERS,
        rung(9),
        (Edit(FORWARD, "ptx::ldmatrix_x4_trans(", "ptx::ldmatrix_x4("),),
    ),
    Mutation(
        "pairs of P are swapped",
        NUMBERS,
        rung(6),
        (
            Edit(
                "dtype.cuh",
                "DType::pack(x[e % 2 * 2], x[e % 2 * 2 + 1])",
                "DType::pack(x[e % 2 * 2 + 1], x[e % 2 * 2])",
            ),
        ),
    ),
    mutation_of("missing-rescale", "O is not rescaled", rung(7)),
    Mutation(
        "the sum is not rescaled",
        NUMBERS,
        rung(5),
        (Edit(SOFTMAX, "stats.sum[i][h] *= shrink;"),),
    ),
    Mutation(
        "the maximum is that of a lane, not of the row",
        NUMBERS,
        rung(1),
        (Edit(SOFTMAX, "quad_max(row_max(s, i, h))", "row_max(s, i, h)", 1),),
    ),
    Mutation(
        "the sum is that of a lane, not of the row",
        NUMBERS,
        rung(15),
        (Edit(PREDICATION, "attn::quad_sum(stats.sum[i][h])", "stats.sum[i][h]"),),
    ),
    Mutation(
        "V is visited forwards while K is visited backwards",
        NUMBERS,
        rung(13),
        (
            Edit(
                FORWARD,
                "scope_.v(), scope_.key(step)",
                "scope_.v(), step * Config::kBC",
            ),
        ),
    ),
    Mutation(
        "the backward loop ends one block early",
        NUMBERS,
        rung(15),
        (
            Edit(
                "attn/kv_order.cuh",
                "num_blocks - 1 - step",
                "max(num_blocks - 2 - step, 0)",
            ),
        ),
    ),
    Mutation(
        "the scale is left out",
        NUMBERS,
        rung(6),
        (
            Edit(
                "attn/softmax.cuh",
                "return softmax_scale * kLog2e;",
                "return kLog2e;",
            ),
        ),
    ),
)

MUTATIONS = (*WAITS, *BARRIERS, *ADDRESSES, *VALUES)

# The barriers behind the copies of K and V already order every reuse of their buffers.
NEEDLESS_BARRIER = Mutation(
    "no barrier at the end of a lazy step", "", rung(2), (Edit(LAZY, SYNC, nth=3),)
)
