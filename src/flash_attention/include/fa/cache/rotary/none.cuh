// SPDX-License-Identifier: Apache-2.0
// No rotary embedding.
#pragma once
#include <fa/cache_args.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::cache::rotary {

struct None {
  static constexpr bool kRotates = false;

  template <class Config>
  static __device__ ptx::Chunk rotated(const char* row, int chunk, const CacheKernelArgs& args,
                                       int /*position*/) {
    return Config::Columns::load(row, chunk, args.d_qk);
  }
};

}  // namespace fa::cache::rotary
