// SPDX-License-Identifier: Apache-2.0
// The partial O of a split as in Parts. The last CTA to store one of a tile combines all of them, in the
// order in which the combine kernel adds them, so that no other kernel has to start.
#pragma once
#include <fa/sm90/combined_row.cuh>
#include <fa/sm90/named_barriers.cuh>
#include <fa/sm90/output/parts.cuh>

namespace fa::sm90::output {

// Row r of a warpgroup.
template <class Warp>
struct PlaceInTile {
  using Rows = typename Warp::Config::Rows;

  const Warp& warp;
  const int r;

  __device__ int position() const { return Rows::position(warp.tile_row + r); }
  __device__ int head() const { return Rows::head(warp.tile.head, warp.tile_row + r); }
  __device__ int batch() const { return warp.tile.batch; }
};

struct Combined : Parts {
  template <class Consumer, class Warp>
  static __device__ void store(Consumer& consumer, const Warp& warp, const attn::RowEnds& ends) {
    Parts::store(consumer, warp, ends);
    __threadfence();                       // other CTAs see this thread's part before it arrives
    sync_warpgroup(consumer.warpgroup());  // and those of all four warps
    if (threadIdx.x % kWarpgroupSize == 0)
      ptx::st_shared_4(consumer.word(), arrives_last<typename Warp::Config>(consumer, warp));
    sync_warpgroup(consumer.warpgroup());  // the answer is there
    if (!ptx::ld_shared_4(consumer.word())) return;
    __threadfence();  // this thread sees the parts of all CTAs
    combine_rows(warp);
  }

 private:
  // Every consumer has a counter for its rows of every tile. The last one resets it to zero.
  template <class Config, class Consumer, class Warp>
  static __device__ bool arrives_last(const Consumer& consumer, const Warp& warp) {
    const int tile = tile_index<Config>(warp.tile, warp.args);
    const int splits =
        Config::Splits::end_split(tile, warp.args) - Config::Splits::first_split(tile, warp.args);
    int* const arrived = warp.args.tile_counter + tile * Config::kConsumers + consumer.warpgroup();
    if (atomicAdd(arrived, 1) < splits - 1) return false;
    *arrived = 0;
    return true;
  }

  // A warp combines every fourth row of the warpgroup.
  template <class Warp>
  static __device__ void combine_rows(const Warp& warp) {
    using Config = typename Warp::Config;
    using Row = CombinedRow<Config>;
    const ForwardKernelArgs& args = warp.args;
#pragma unroll 1
    for (int r = warp.warp_in_group(); r < Shape<Config>::kRows; r += kWarpgroupSize / kWarpSize) {
      const PlaceInTile<Warp> place = {warp, r};
      if (place.position() >= args.seq_len_q) return;
      const Row row(args, place);
      const auto weights = row.weights();
      for (int column = 4 * lane_id(); column < args.d_v; column += Row::kColumns)
        row.store(column, row.sum_of_all_parts(column, weights.offset, weights.inverse()));
      if (args.lse && lane_id() == 0) row.store_lse(weights);
    }
  }
};

}  // namespace fa::sm90::output
