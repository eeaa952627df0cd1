// SPDX-License-Identifier: Apache-2.0
// The slot QueryOperand: where the products read Q.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/ptx/math.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/fp8/shared_memory.cuh>

namespace fa::sm90::fp8 {

struct Nothing {
  __device__ void operator()() const {}
};

template <class T, class Config>
concept QueryOperandSlot =
    requires(typename T::template Operand<typename Tiles<Config>::QTile, Config::kDHead>& operand,
             typename Tiles<Config>::QTile tile, typename Tiles<Config>::KTile::RowOperand k,
             Accumulator<16, Config::kBC>& s, Nothing release) {
      operand.begin(tile, 0, release);
      operand.issue(s, k);
      operand.end(release);
    };

}  // namespace fa::sm90::fp8

namespace fa::sm90::fp8::query_operand {

// Products read Q from shared memory; its buffer is free after the last scores of the tile.
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

// Q is read into registers once, and its buffer is free for the next tile at once.
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
