// SPDX-License-Identifier: Apache-2.0
// Products read Q from shared memory; its buffer is free after the last scores of the tile.
#pragma once
#include <fa/ptx/e4m3.cuh>
#include <fa/ptx/wgmma.cuh>

namespace fa::sm90::fp8::query_operand {

struct Shared {
  template <class Tile, int DHead>
  struct Operand {
    typename Tile::RowOperand q;

    // Q has arrived.
    template <class Release>
    __device__ void begin(Tile tile, int /*row*/, Release) {
      q = tile.row_operand();
    }

    template <int Keys, class KOperand>
    __device__ void issue(Accumulator<16, Keys>& s, KOperand k) const {
#pragma unroll
      for (int d = 0; d < DHead / 32; ++d)
        ptx::WgmmaFromShared<ptx::E4m3, Keys>::run(s, q.step(d), k.step(d), d != 0);
    }

    template <class Release>
    __device__ void end(Release release) const {
      release();
    }
  };
};

}  // namespace fa::sm90::fp8::query_operand
