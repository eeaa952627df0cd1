// SPDX-License-Identifier: Apache-2.0
// Q is read into registers once, and its buffer is free for the next tile at once.
#pragma once
#include <fa/ptx/e4m3.cuh>
#include <fa/ptx/ldmatrix.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/ptx/wgmma.cuh>

namespace fa::sm90::fp8::query_operand {

struct Registers {
  template <class Tile, int DHead>
  struct Operand {
    u32 step[DHead / 32][4];

    // Q has arrived. `row` is the warp's first in its tile.
    template <class Release>
    __device__ void begin(Tile tile, int row, Release release) {
#pragma unroll
      for (int d = 0; d < DHead / 32; ++d)
        ptx::ldmatrix_x4(step[d], tile.chunk(row + lane_id() % 16, 2 * d + lane_id() / 16));
      ptx::fence_proxy_async();  // these reads come before the copy engine's next writes
      __syncwarp();              // all lanes have read Q
      release();
    }

    template <int Keys, class KOperand>
    __device__ void issue(Accumulator<16, Keys>& s, KOperand k) const {
      using Product = ptx::WgmmaFromRegistersByRows<ptx::E4m3, Keys>;
      Product::start(s, step[0], k.step(0));
#pragma unroll
      for (int d = 1; d < DHead / 32; ++d) Product::run(s, step[d], k.step(d));
    }

    template <class Release>
    __device__ void end(Release) const {}
  };
};

}  // namespace fa::sm90::fp8::query_operand
