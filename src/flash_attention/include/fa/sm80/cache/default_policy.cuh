// SPDX-License-Identifier: Apache-2.0
// Global memory accesses without hints.
#pragma once
#include <fa/ptx/cp_async.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::sm80::cache {

struct DefaultPolicy {
  static __device__ void load_async(u32 smem, const void* gmem) { ptx::cp_async_16(smem, gmem); }
  static __device__ void load_async_or_zero(u32 smem, const void* gmem, bool inside) {
    ptx::cp_async_16_or_zero(smem, gmem, inside);
  }
  static __device__ ptx::Chunk load(const void* gmem) { return ptx::ld_global_16(gmem); }
  static __device__ void store(void* gmem, ptx::Chunk c) { ptx::st_global_16(gmem, c); }
  static __device__ void store(void* gmem, u32 pair) { ptx::st_global_4(gmem, pair); }
};

}  // namespace fa::sm80::cache
