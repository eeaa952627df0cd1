// SPDX-License-Identifier: Apache-2.0
// TMA: copies boxes of a tensor that a tensor map describes, coordinates innermost first. A load
// reports its bytes to an mbarrier; elements outside the tensor are zero, and count. A store skips
// elements outside the tensor.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/mbarrier.cuh>

namespace fa {

struct alignas(64) TensorMap {  // opaque, made by the driver
  u64 words[16];
};

}  // namespace fa

namespace fa::ptx {

__device__ inline void tma_prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ inline void tma_load_4d(u32 smem, const TensorMap& map, Mbarrier barrier, int x0, int x1,
                                   int x2, int x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(smem),
      "l"(&map), "r"(barrier.address), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}

// Prefetches the box into L2.
__device__ inline void tma_prefetch_4d(const TensorMap& map, int x0, int x1, int x2, int x3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map),
               "r"(x0), "r"(x1), "r"(x2), "r"(x3)
               : "memory");
}

__device__ inline void tma_store_4d(const TensorMap& map, u32 smem, int x0, int x1, int x2,
                                    int x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(smem), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}

__device__ inline void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all stores of this thread have read their shared memory.
__device__ inline void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until all stores of this thread are complete.
__device__ inline void tma_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Makes earlier ordinary writes to shared memory visible to TMA and wgmma.
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace fa::ptx
