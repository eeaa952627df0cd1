// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory by cp.async; the copy runs in the background until a wait.
#pragma once
#include <fa/ptx/cp_async.cuh>

namespace fa::sm80::copy {

struct AsyncCopy {
  template <class Cache>
  static __device__ void chunk(u32 smem, const void* gmem) {
    Cache::load_async(smem, gmem);
  }

  // Stores zeros unless `inside`; the address must be readable either way.
  template <class Cache>
  static __device__ void chunk_or_zero(u32 smem, const void* gmem, bool inside) {
    Cache::load_async_or_zero(smem, gmem, inside);
  }

  static __device__ void commit() { ptx::cp_async_commit(); }

  template <int Pending>
  static __device__ void wait() {
    ptx::cp_async_wait<Pending>();
  }
};

}  // namespace fa::sm80::copy
