// SPDX-License-Identifier: Apache-2.0
// The producer: one thread that goes through the tiles, tells the consumers about each, and loads Q into
// shared memory. The kernel's own producer, `Own`, loads the blocks of K and V.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/split_v/rows.cuh>
#include <fa/sm90/split_v/shared_memory.cuh>

namespace fa::sm90::split_v {

// Own::load_block(tile, block, meanwhile) loads a block, and calls `meanwhile` after its keys.
template <class Own, class Config, class Memory, class Maps>
class Producer {
  using QTile = typename Shape<Config>::QTile;
  using Rows = typename Config::Rows;

 public:
  __device__ Producer(const Memory& smem, const Maps& maps, const ForwardKernelArgs& args)
      : smem_(smem), maps_(maps), args_(args) {}

  __device__ void run() {
    post_tiles<Config>(smem_.mail(), args_, sequence_, tile_parity_,
                       [this](const Tile& tile) { load(tile); });
  }

 protected:
  const Memory& smem_;
  const Maps& maps_;
  const ForwardKernelArgs& args_;
  attn::Sequence sequence_ = {};
  int kv_head_ = 0;  // of the tile; a division per load would delay it
  Ring<kStages> ring_;

 private:
  __device__ void load(const Tile& tile) {
    Own& own = static_cast<Own&>(*this);
    const auto range = key_range<Config>(tile, typename Config::Mask(args_), sequence_);
    kv_head_ = Rows::kGroup > 1 ? tile.head : tile.head / args_.heads_per_kv;
    const int index = tile_index<Config>(tile, args_);
    const int first = Config::Splits::first_block(range, index, tile.split, args_);
    int block = Config::Splits::end_block(range, index, tile.split, args_) - 1;
    if (block < first)
      load_q(tile);
    else
      own.load_block(tile, block, [&] { load_q(tile); });
    while (--block >= first) own.load_block(tile, block, [] {});
  }

  __device__ void load_q(const Tile& tile) {
    const int row = first_row<Config>(tile);
    smem_.q_pipeline().acquire(0, tile_parity_);  // the previous Q was read
    const ptx::Mbarrier full = smem_.q_pipeline().full(0);
    ptx::mbarrier_arrive_expect(full, Shape<Config>::kQLoadBytes);
#pragma unroll
    for (int p = 0; p < QTile::kCount; ++p)
      ptx::tma_load_4d(smem_.q().panel(p), maps_.q, full, p * QTile::kColumns,
                       Rows::head(tile.head, row), sequence_.q_first + Rows::position(row),
                       sequence_.q_batch);
  }

  u32 tile_parity_ = 0;
};

}  // namespace fa::sm90::split_v
