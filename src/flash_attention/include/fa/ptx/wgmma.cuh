// SPDX-License-Identifier: Apache-2.0
// Asynchronous products of a warpgroup: 64 rows, N columns, 16 deep, or 32 in e4m3. The instruction names
// all its registers, so each translation unit contains wrappers for the widths that its kernel uses.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

// D = A B^T, or D += A B^T: A [64][16] and B [N][16] in shared memory, both contiguous along 16.
template <class DType, int N>
struct WgmmaFromShared;

// start: D = A B, in registers that need no values. run: D += A B. A [64][16] and B [16][N] are in shared
// memory, contiguous along 16, or A along 64 and B along N.
template <class DType, int N, bool AAlongRows, bool BAlongWidth>
struct WgmmaBothShared;

// start: D = A B^T, in registers that need no values. run: D += A B^T. A [64][16] is in registers, B
// [N][16] in shared memory, contiguous along 16.
template <class DType, int N>
struct WgmmaFromRegistersByRows;

// D += A B: A [64][16] in registers, B [16][N] in shared memory, contiguous along N.
template <class DType, int N>
struct WgmmaFromRegisters;

// Orders earlier accesses to operand registers before later products.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `Pending` committed groups are still running.
template <int Pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// An operand's descriptor. Bits 0-13 address / 16, 16-29 leading distance / 16, 32-45 stride distance
// / 16, 62-63 swizzle (0: none, 1: 128 bytes, 2: 64 bytes).
__device__ inline u64 wgmma_descriptor(u32 smem, int leading_bytes, int stride_bytes,
                                       int swizzle_bytes) {
  return static_cast<u64>((smem & 0x3FFFF) >> 4) | static_cast<u64>(leading_bytes >> 4) << 16 |
         static_cast<u64>(stride_bytes >> 4) << 32 |
         static_cast<u64>(swizzle_bytes == 128 ? 1 : swizzle_bytes / 32) << 62;
}

}  // namespace fa::ptx
