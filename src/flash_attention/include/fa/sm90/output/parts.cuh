// SPDX-License-Identifier: Apache-2.0
// O of a split of the keys, in fp32 and beside its log-sum-exp, to be combined with the others.
#pragma once
#include <fa/attn/part_rows.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90::output {

struct Parts {
  static constexpr bool kOwnBuffer = false;

  template <class Consumer>
  static __device__ void queries_read(Consumer& consumer) {
    consumer.release_q();
  }

  template <class Consumer, class Warp>
  static __device__ void store(Consumer&, const Warp& warp, const attn::RowEnds& ends) {
    using Config = typename Warp::Config;
    const ForwardKernelArgs& args = warp.args;
    const attn::PartRows<typename Config::Rows, Shape<Config>::kBR> rows(args);
    const int part =
        Config::Splits::part(tile_index<Config>(warp.tile, args), warp.tile.split, args);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = warp.lane_row(h);
      if (!warp.used(r)) continue;
      const i64 row = rows.at(part, warp.row(r));
      if (lane_id() % 4 == 0) args.lse_parts[row] = ends.lse[h];
      float* const to = args.o_parts + row * args.d_v;
#pragma unroll
      for (int j = 0; j < Config::kDHead / 8; ++j)
        if (const int column = 8 * j + 2 * (lane_id() % 4); column < args.d_v)
          ptx::st_global_8(to + column, warp.o.v[0][j][2 * h], warp.o.v[0][j][2 * h + 1]);
    }
  }
};

}  // namespace fa::sm90::output
