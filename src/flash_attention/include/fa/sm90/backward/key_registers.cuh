// SPDX-License-Identifier: Apache-2.0
// A key operand in registers.
#pragma once
#include <fa/sm90/backward/shared_memory.cuh>

namespace fa::sm90::backward::key_operand {

// K is read once for all blocks of a tile, and the products read half as much from shared memory.
struct Registers {
  template <class Config, int Warpgroup>
  class Of {
    using Fragments = KeyFragments<Config>;

   public:
    __device__ void read() {
      const auto tile = rows_of(SharedMemory<Config>::k(), Warpgroup);
      const int row = warp_in_group() * kWarpRows + lane_id() % 16;
#pragma unroll
      for (int d = 0; d < Config::kDHead / 16; ++d)
        ptx::ldmatrix_x4(fragments_.step[d], tile.chunk(row, 2 * d + lane_id() / 16));
    }
    __device__ const Fragments& operand() const { return fragments_; }

   private:
    Fragments fragments_;
  };
};

}  // namespace fa::sm90::backward::key_operand
