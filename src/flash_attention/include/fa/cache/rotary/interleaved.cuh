// SPDX-License-Identifier: Apache-2.0
// Columns 2 i and 2 i + 1 turn together, as in GPT-J.
#pragma once
#include <fa/cache/turn.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::cache::rotary {

struct Interleaved {
  static constexpr bool kRotates = true;

  template <class Config>
  static __device__ ptx::Chunk rotated(const char* row, int chunk, const CacheKernelArgs& args,
                                       int position) {
    using DType = typename Config::DType;
    const ptx::Chunk c = Config::Columns::load(row, chunk, args.d_qk);
    if (chunk * kChunkElements >= args.rotary_dim) return c;
    const auto turned = [&](u32 pair, int i) {
      const Turn turn = turn_of<DType>(args, position, chunk * kChunkElements / 2 + i);
      const float x = DType::low(pair), y = DType::high(pair);
      return DType::pack(turn.first(x, y), turn.second(x, y));
    };
    return {turned(c.x, 0), turned(c.y, 1), turned(c.z, 2), turned(c.w, 3)};
  }
};

}  // namespace fa::cache::rotary
