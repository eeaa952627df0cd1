// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory through registers: the data has arrived when the thread continues.
#pragma once
#include <fa/ptx/memory.cuh>

namespace fa::sm80::copy {

struct PlainCopy {
  template <class Cache>
  static __device__ void chunk(u32 smem, const void* gmem) {
    ptx::st_shared_16(smem, Cache::load(gmem));
  }

  template <class Cache>
  static __device__ void chunk_or_zero(u32 smem, const void* gmem, bool inside) {
    ptx::st_shared_16(smem, inside ? Cache::load(gmem) : ptx::Chunk{});
  }

  static __device__ void commit() {}

  template <int Pending>
  static __device__ void wait() {}
};

}  // namespace fa::sm80::copy
