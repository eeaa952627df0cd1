// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies from global to shared memory, in groups that complete in order.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

__device__ inline void cp_async_16(u32 smem, const void* gmem) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem), "l"(gmem) : "memory");
}

// Sixteen zero bytes unless `inside`; the address must be readable either way.
__device__ inline void cp_async_16_or_zero(u32 smem, const void* gmem, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem), "l"(gmem),
               "r"(inside ? 16 : 0)
               : "memory");
}

// Asks L2 to fetch the whole 128-byte line.
__device__ inline void cp_async_16_prefetch_128(u32 smem, const void* gmem) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(smem), "l"(gmem)
               : "memory");
}

__device__ inline void cp_async_16_or_zero_prefetch_128(u32 smem, const void* gmem, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem), "l"(gmem),
               "r"(inside ? 16 : 0)
               : "memory");
}

__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the latest `Pending` groups of this thread have completed.
template <int Pending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace fa::ptx
