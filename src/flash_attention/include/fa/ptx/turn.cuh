// SPDX-License-Identifier: Apache-2.0
// Counters in global memory by which CTAs take turns. Who sees a count also sees what was written before
// the counter reached it.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

__device__ inline int ld_acquire(const int* gmem) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(gmem) : "memory");
  return x;
}

__device__ inline void wait_for_count(const int* gmem, int count) {
  while (ld_acquire(gmem) != count) {
  }
}

__device__ inline void count_up(int* gmem) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(gmem) : "memory");
}

// Orders bulk copies of global memory with ordinary accesses of this thread, before and after it.
__device__ inline void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace fa::ptx
