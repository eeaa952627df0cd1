// SPDX-License-Identifier: Apache-2.0
// All warpgroups copy and compute: V is loaded during Q K^T, the next K during the softmax and P V.
// There is one buffer each of Q, K and V, and one tile per CTA.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/sm90/copy.cuh>
#include <fa/sm90/forward.cuh>
#include <fa/sm90/products.cuh>
#include <fa/sm90/tile_order.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90 {

// ... of one without a producer, ...
template <class Config>
__device__ constexpr bool check_unified_slots() {
  static_assert(check_slots<Config>());
  static_assert(
      CopySlot<typename Config::Copy, Config>,
      "Copy: Transfers<Config> with load_q, load_k, load_v, load_nothing, wait_k, wait_v, store");
  return true;
}

}  // namespace fa::sm90

namespace fa::sm90::roles {

struct Unified {
  template <class Config, class Maps>
  static __device__ void run(const Maps& maps, const ForwardKernelArgs& args, u32 base) {
    static_assert(check_unified_slots<Config>());
    using Math = Products<Config>;
    using QTile = typename Shape<Config>::QTile;
    using KVTile = typename Shape<Config>::VTile;
    constexpr int kSmemBytes =
        Config::kConsumers * QTile::kBytes + 2 * KVTile::kBytes + Config::kBarrierBytes;
    static_assert(check_host_numbers<Config, kSmemBytes>());
    using Range = attn::KeyRange<typename Config::Mask, Config::kBC>;
    using Transfers = typename Config::Copy::template Transfers<Config>;
    const QTile q_tiles(base);  // one for each warpgroup
    const KVTile k_tile(q_tiles.after(Config::kConsumers).address), v_tile = k_tile.after(1);
    const ptx::Mbarrier barriers = {v_tile.after(1).address};
    Tile tile;
    tile_order::OneEach::Walk<Config>(args).next(tile);
    const int first_row = tile.q_block * Shape<Config>::kBR;
    const int warp_row = first_row + warp_id() * kWarpRows;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
    const typename Config::Mask mask(args);
    const attn::Sequence sequence = Config::Lengths::sequence(args, tile.batch);
    const Range range(mask, first_row, Shape<Config>::kBR, sequence);
    const int first = range.first_block();
    attn::Factor factor{Config::Exponential::factor(Config::Score::scale(args))};
    const QTile q_tile = q_tiles.after(warpgroup);
    const auto q = q_tile.row_operand();
    const auto k = k_tile.row_operand();
    const auto v = v_tile.column_operand();

    Transfers transfers(maps, args, tile, barriers);
    typename Math::template Scores<Config::kBC> s;
    typename Math::template Weights<Config::kBC> p;
    typename Math::Output o;
    attn::RowStats<kWarpRows> stats;
    stats.reset();
    o.zero();
    int block = range.end_block() - 1;
    if (block >= first) {
      transfers.load_q(q_tiles, first_row);
      transfers.load_k(k_tile, block * Config::kBC);
    }
#pragma unroll 1
    for (; block >= first; --block) {
      transfers.wait_k();  // Q and K have arrived
      transfers.load_v(v_tile, block * Config::kBC);
      Math::issue_scores(s, q, k);
      Math::template wait_products<0>();  // S is complete
      __syncthreads();                    // every warp has read K
      if (block > first)
        transfers.load_k(k_tile, (block - 1) * Config::kBC);
      else
        transfers.load_nothing();
      Config::Score::change(s, args);
      if (range.hides(block))
        attn::hide<typename Config::Rows>(s, mask, warp_row, block * Config::kBC, sequence);
      Config::Rescale::template run<typename Config::Exponential>(attn::Masked{}, s, stats, factor);
      if (stats.grew) attn::rescale_rows(o, stats);
      Math::convert(p, s);
      transfers.wait_v();  // V has arrived
      Math::issue_accumulate(o, p, v);
      Math::template wait_products<0>();  // O is complete
      __syncthreads();                    // every warp has read V
    }
    const WarpOutput<Config> warp = {o, args, sequence, tile,
                                     first_row + warpgroup * kWarpgroupRows};
    const attn::RowEnds ends = warp.ends(stats, Config::Score::scale(args));
    ends.normalise(o);
    warp.store_lse(ends);
    transfers.store(warp, q_tile);
  }
};

}  // namespace fa::sm90::roles
