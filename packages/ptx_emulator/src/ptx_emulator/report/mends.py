# SPDX-License-Identifier: Apache-2.0
"""How to fix a mistake, by the kind of finding that it gives."""

from __future__ import annotations

DEADLOCK = "deadlock"

_WAIT = "Wait for the copy before the kernel ends, and before its data is used."
_ALIGN = "Give the tile an offset, or the tensor a stride, that is a multiple of the access."
_ARRIVALS = (
    "Count what the barrier waits for: as many arrivals as its init says, and as many bytes as "
    "expect_tx announces. The parity of a wait flips each time round the ring."
)
_WGMMA = "Put wgmma_fence before the first product, wgmma_commit and a wait after the last one."

_ANY_ORDER = "Warps run in any order."
PROBLEMS = {
    "race": (
        f"{_ANY_ORDER} The two accesses meet the same bytes and nothing says which comes first, so "
        "the value depends on the schedule: right today, wrong on another GPU or compiler."
    ),
    "intra-warp-race": (
        "The lanes of a warp need not run in step. A lane may read before the other lane wrote."
    ),
    "uninitialised-shared": "Shared memory holds what the last kernel left there.",
    "uninitialised-global": "Fresh global memory holds anything; cudaMalloc clears nothing.",
    "shared-out-of-bounds": "The access meets another variable, or ends the launch with an error.",
    "global-out-of-bounds": (
        "The access meets another tensor and changes it in silence, or ends the launch with an "
        "error."
    ),
    "local-out-of-bounds": "The access meets another variable of the thread.",
    "shared-misaligned": "The hardware stops the launch with an error.",
    "global-misaligned": "The hardware stops the launch with an error.",
    "cta-write-conflict": (
        "CTAs run in any order. The last one to run decides what is there, and a load may come "
        "before the store that it needs, or find an old value in a cache."
    ),
    "read-only-load": (
        "__ldg and ld.global.nc read through a cache that is not told of stores of the same kernel."
    ),
    "cluster-exit": ("The shared memory of a CTA belongs to another one as soon as it has ended."),
    "missing-proxy-fence": (
        "TMA and wgmma read on another path than ordinary stores write. Without the fence they may "
        "see the bytes of before."
    ),
    "mbarrier-transaction": (
        "More bytes arrive than the barrier expects, so a phase ends too early or never."
    ),
    "uninitialised-register": "The register holds what another thread or kernel left there.",
    "membermask": (
        "The hardware waits for lanes that never come, or exchanges values with lanes that have "
        "none."
    ),
    "stray-address": "The access meets another array, and changes it in silence.",
    "mbarrier-untested": (
        "mbarrier.try_wait gives up after a while. A kernel that goes on then reads what has not "
        "arrived."
    ),
    "early-access": (
        "The kernel before may still run. Its results are not there yet, or it overwrites yours."
    ),
    "mbarrier-overwritten": "An mbarrier that holds data completes its phases at random.",
    "wgmma-unfenced": (
        "Tensor cores read and write registers in their own time. Without the fence they may meet "
        "the value of before, or overwrite one that is still read."
    ),
    "setmaxnreg": (
        "The hardware counts registers for the CTA and moves them at the end of a warp's own. What "
        "a register holds, or whether the launch ends, is then undefined."
    ),
    "divergent-barrier": (
        "__syncthreads counts whole warps. Where the lanes of a warp reach it apart, or not all of "
        "them do, the GPU counts a warp that is not there yet, or waits forever."
    ),
    "printf-format": "printf takes the bytes of another argument, or bytes that nobody wrote.",
    "deadlock": "No warp can go on. On a GPU the launch would never end.",
}

MENDS = {
    "local-out-of-bounds": "Compare the index with the size of the thread's own array.",
    "local-misaligned": _ALIGN,
    "race": (
        "Put what orders the two accesses between them: a wait for the copy that writes, and a "
        "barrier where other threads read. A buffer is reused only behind its last reader."
    ),
    "intra-warp-race": (
        "Put __syncwarp() between what the lanes do and what another lane, or the copy that it "
        "starts, does with the same bytes."
    ),
    "uninitialised-shared": "Load or clear the bytes first, or wait for the copy that brings them.",
    "uninitialised-global": "Read only what a tensor holds or what this launch has stored before.",
    "shared-out-of-bounds": "Compare the tile's offset and size with the launch's shared memory.",
    "global-out-of-bounds": (
        "Compare the index with the size of the array: threads of the last block may be beyond "
        "its end. Of a tile, check the first row, the number of rows and the stride."
    ),
    "shared-misaligned": _ALIGN,
    "global-misaligned": _ALIGN,
    "cta-write-conflict": (
        "Give each CTA rows of its own: compare its tile with its neighbours'. What other CTAs "
        "write is loaded by another kernel, or behind a flag or a counter: __threadfence() between "
        "the stores and the atomic, and between the atomic and the loads."
    ),
    "read-only-load": "Drop __ldg, or const __restrict__, where the kernel also stores.",
    "cluster-exit": (
        "Put a cluster barrier behind the last access to the shared memory of another CTA."
    ),
    "cp-async-unwaited": _WAIT,
    "bulk-load-unwaited": _WAIT,
    "bulk-store-unwaited": "Wait until the store has read its tile before the kernel ends.",
    "missing-proxy-fence": (
        "Put fence.proxy.async behind the writes, before the barrier that lets TMA or wgmma read; "
        "fence.mbarrier_init behind mbarrier.init."
    ),
    "mbarrier-overflow": _ARRIVALS,
    "mbarrier-transaction": _ARRIVALS,
    "mbarrier-uninitialised": "Let one thread init the mbarrier, then a barrier, then use it.",
    "mbarrier-reinitialised": "Init an mbarrier once; a ring reuses it by the parity of its phase.",
    "mbarrier-overwritten": "Give mbarriers bytes of their own, and compare the offsets of tiles.",
    "mbarrier-untested": "Repeat mbarrier.try_wait until its result is true.",
    "early-access": "Put griddepcontrol.wait before accesses to what the kernel before wrote.",
    "membermask": "Let the mask name the lanes that reach the instruction together, no others.",
    "divergent-barrier": (
        "Take the barrier out of the branch or the loop, so that all threads of the block reach "
        "the same barrier equally often. Threads without work may return before it."
    ),
    "printf-format": "Give printf as many arguments as its text asks for, of those types.",
    "stray-address": "Compare the index with the size of the array that the address starts in.",
    "uninitialised-register": "Give the variable a value on every path that leads to its use.",
    "wgmma-in-flight": _WGMMA,
    "wgmma-unfenced": (
        "Put wgmma_fence between the last use of the accumulator or of A by other instructions and "
        "the product."
    ),
    "wgmma-descriptor": "Compare start, strides and swizzle of the descriptor with the tile's.",
    "tma-alignment": (
        "Put the tile at a multiple of 128 bytes, or of its swizzle pattern. Addresses and sizes "
        "of bulk copies without a tensor are multiples of 16 bytes."
    ),
    "tma-coordinates": "Start boxes at multiples of 16 bytes, and stores inside the tensor.",
    "tma-tensor-map": "Pass the tensor map of this tensor, with as many dimensions as the box.",
    "setmaxnreg": (
        "Let all warps of a warpgroup execute the same setmaxnreg, with a barrier between two of "
        "them. dec goes down to its count, and inc goes up."
    ),
    DEADLOCK: (
        f"{_ARRIVALS} Registers that setmaxnreg.inc takes are those that setmaxnreg.dec of other "
        "warps gives up."
    ),
}
