// SPDX-License-Identifier: Apache-2.0
// The partial O of a split in fp32 and its log-sum-exp, to be combined with the other splits.
#pragma once
#include <fa/ptx/memory.cuh>
#include <fa/sm90/part_rows.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90::output {

struct Parts : OutsideQueries {
  static constexpr bool kOwnBuffer = false;

  template <class Consumer, class Warp>
  static __device__ void store(Consumer&, const Warp& warp, const attn::RowEnds& ends) {
    using Config = typename Warp::Config;
    const ForwardKernelArgs& args = warp.args;
    const PartRows<typename Config::Rows, Shape<Config>::kBR> rows(args);
    const int part =
        Config::Splits::part(tile_index<Config>(warp.tile, args), warp.tile.split, args);
    warp.store_pairs([&](int r, int h) {
      const i64 row = rows.at(part, warp.row(r));
      if (lane_id() % 4 == 0 && warp.stores_row_values()) args.lse_parts[row] = ends.row[h].lse();
      float* const to = ptx::computed_once(args.o_parts + row * args.d_v);
      return [to](int column, float x, float y) { ptx::st_global_8(to + column, x, y); };
    });
  }
};

}  // namespace fa::sm90::output
