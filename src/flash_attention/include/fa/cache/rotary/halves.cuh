// SPDX-License-Identifier: Apache-2.0
// Columns i and i + rotary_dim / 2 turn together, as in GPT-NeoX. rotary_dim / 2 is a number of chunks.
#pragma once
#include <fa/cache/turn.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::cache::rotary {

struct Halves {
  static constexpr bool kRotates = true;

  template <class Config>
  static __device__ ptx::Chunk rotated(const char* row, int chunk, const CacheKernelArgs& args,
                                       int position) {
    using DType = typename Config::DType;
    const int half = args.rotary_dim / 2 / kChunkElements;
    const ptx::Chunk mine = Config::Columns::load(row, chunk, args.d_qk);
    if (chunk >= 2 * half) return mine;
    const bool first = chunk < half;
    const ptx::Chunk other =
        Config::Columns::load(row, first ? chunk + half : chunk - half, args.d_qk);
    const auto turned = [&](float own, float far, int i) {
      const Turn turn = turn_of<DType>(args, position, chunk % half * kChunkElements + i);
      return first ? turn.first(own, far) : turn.second(far, own);
    };
    const auto pair = [&](u32 own, u32 far, int i) {
      return DType::pack(turned(DType::low(own), DType::low(far), 2 * i),
                         turned(DType::high(own), DType::high(far), 2 * i + 1));
    };
    return {pair(mine.x, other.x, 0), pair(mine.y, other.y, 1), pair(mine.z, other.z, 2),
            pair(mine.w, other.w, 3)};
  }
};

}  // namespace fa::cache::rotary
