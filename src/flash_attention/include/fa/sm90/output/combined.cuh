// SPDX-License-Identifier: Apache-2.0
// The partial O of a split as in Partial. The last CTA to store one of a tile combines all of them, in the
// order in which the combine kernel adds them, so that no other kernel has to start.
#pragma once
#include <fa/sm90/combined_row.cuh>
#include <fa/sm90/output.cuh>
#include <fa/sm90/shape.cuh>

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

struct Combined : Partial {
  template <class Consumer, class Warp>
  static __device__ void store(Consumer& consumer, const Warp& warp, const attn::RowEnds& ends) {
    Partial::store(consumer, warp, ends);
    sync_warpgroup(consumer.warpgroup());  // all four warps have stored their part
    if (threadIdx.x % kWarpgroupSize == 0) {
      __threadfence();  // other CTAs see the part before this one arrives
      ptx::st_shared_4(consumer.word(), arrives_last<typename Warp::Config>(consumer, warp));
      __threadfence();  // the last CTA sees the parts of all
    }
    sync_warpgroup(consumer.warpgroup());  // the answer is there
    if (ptx::ld_shared_4(consumer.word())) combine_rows(warp);
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
#pragma unroll 1
    for (int r = warp_in_group(); r < Shape<Config>::kRows; r += kWarpgroupWarps) {
      const PlaceInTile<Warp> place = {warp, r};
      if (place.position() >= warp.args.seq_len_q) return;
      CombinedRow<Config>(warp.args, place).store_few();
    }
  }
};

}  // namespace fa::sm90::output
