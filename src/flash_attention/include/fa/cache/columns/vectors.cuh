// SPDX-License-Identifier: Apache-2.0
// Rows of whole, aligned chunks.
#pragma once
#include <fa/ptx/memory.cuh>

namespace fa::cache::columns {

struct Vectors {
  static __device__ ptx::Chunk load(const char* row, int chunk, int /*columns*/) {
    return ptx::ld_global_16(row + chunk * kChunkBytes);
  }
  static __device__ void store(char* row, int chunk, int /*columns*/, ptx::Chunk value) {
    ptx::st_global_16(row + chunk * kChunkBytes, value);
  }
};

}  // namespace fa::cache::columns
