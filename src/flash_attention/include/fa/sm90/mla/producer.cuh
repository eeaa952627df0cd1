// SPDX-License-Identifier: Apache-2.0
// The producer: one thread that goes through the tiles, tells the consumers about each, and loads Q and
// K into shared memory as buffers become empty.
#pragma once
#include <fa/sm90/mailbox.cuh>
#include <fa/sm90/halves/rows.cuh>
#include <fa/sm90/mla/shared_memory.cuh>
#include <fa/sm90/mla/tensor_maps.cuh>

namespace fa::sm90::mla {

template <class Config>
class Producer {
  using QTile = typename Tiles<Config>::QTile;
  using Rows = typename Config::Rows;
  static constexpr int kHalfColumns = Tiles<Config>::kHalfColumns;

 public:
  __device__ Producer(const SharedMemory<Config>& smem, const TensorMaps& maps,
                      const ForwardKernelArgs& args)
      : smem_(smem), maps_(maps), args_(args) {}

  __device__ void run() {
    ptx::tma_prefetch_map(maps_.q);
    ptx::tma_prefetch_map(maps_.k);
    typename Config::TileOrder::template Walk<Config> walk(args_);
    Tile tile;
    while (walk.next(tile)) {
      sequence_ = Config::Lengths::sequence(args_, tile.batch);
      post_tile<Config>(smem_.mail(), tile, sequence_, tile_parity_);
      load(tile);
      tile_parity_ ^= 1;
    }
    post_tile<Config>(smem_.mail(), kNoMoreTiles, sequence_, tile_parity_);
  }

 private:
  __device__ void load(const Tile& tile) {
    const auto range = halves::key_range<Config>(tile, typename Config::Mask(args_), sequence_);
    const int index = tile_index<Config>(tile, args_);
    const int first = Config::Splits::first_block(range, index, tile.split, args_);
    int block = Config::Splits::end_block(range, index, tile.split, args_) - 1;
    if (block >= first) load_k(tile, block);
    load_q(tile);
    while (--block >= first) load_k(tile, block);
  }

  __device__ void load_q(const Tile& tile) {
    const int row = halves::first_row<Config>(tile);
    ptx::mbarrier_wait(smem_.q_empty(), tile_parity_ ^ 1);  // the previous Q was read
    ptx::mbarrier_arrive_expect(smem_.q_full(), Shape<Config>::kQLoadBytes);
#pragma unroll
    for (int p = 0; p < QTile::kCount; ++p)
      ptx::tma_load_4d(smem_.q().panel(p), maps_.q, smem_.q_full(), p * QTile::kColumns,
                       Rows::head(tile.head, row), sequence_.q_first + Rows::position(row),
                       sequence_.q_batch);
  }

  __device__ void load_k(const Tile& tile, int block) {
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
      const int part = nth_part(ring_.stage, n);
      if (n == kRotaryTurn)
        load_part(smem_.rotary(ring_.stage), part, tile, block);
      else
        load_part(smem_.v(ring_.stage, part), part, tile, block);
    }
    ring_.advance();
  }

  template <class PartTile>
  __device__ void load_part(PartTile to, int part, const Tile& tile, int block) {
    const ptx::Mbarrier full = smem_.k_full(ring_.stage, part);
    ptx::mbarrier_wait(smem_.k_empty(ring_.stage, part), ring_.parity ^ 1);  // it was released
    ptx::mbarrier_arrive_expect(full, PartTile::kBytes);
    Config::Pages::load(to, maps_.k, full, /*kv_head=*/0, block * Config::kBC, tile.batch,
                        sequence_, args_, part * kHalfColumns);
  }

  const SharedMemory<Config>& smem_;
  const TensorMaps& maps_;
  const ForwardKernelArgs& args_;
  attn::Sequence sequence_ = {};
  Ring<kStages> ring_;
  u32 tile_parity_ = 0;
};

}  // namespace fa::sm90::mla
