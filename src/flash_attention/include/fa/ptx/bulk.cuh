// SPDX-License-Identifier: Apache-2.0
// Bulk copies of contiguous bytes, a multiple of 16, between shared and global memory. A load reports
// to an mbarrier; stores and additions complete in groups, as those of tensor maps do (tma.cuh).
#pragma once
#include <fa/ptx/tma.cuh>

namespace fa::ptx {

__device__ inline void bulk_load(u32 smem, const void* gmem, int bytes, Mbarrier barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(smem),
      "l"(gmem), "r"(bytes), "r"(barrier.address)
      : "memory");
}

__device__ inline void bulk_store(void* gmem, u32 smem, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(gmem), "r"(smem),
               "r"(bytes)
               : "memory");
}

// Adds floats in shared memory to those in global memory, each addition atomic.
__device__ inline void bulk_add_f32(void* gmem, u32 smem, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(gmem),
      "r"(smem), "r"(bytes)
      : "memory");
}

// Waits until all but the latest `Pending` groups of this thread have read their shared memory.
template <int Pending>
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

}  // namespace fa::ptx
