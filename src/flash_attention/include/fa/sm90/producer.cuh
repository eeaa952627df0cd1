// SPDX-License-Identifier: Apache-2.0
// The producer: one thread that goes through the tiles, tells the consumers about each, and loads Q, K
// and V into shared memory as buffers become empty.
#pragma once
#include <fa/ptx/tma.cuh>
#include <fa/sm90/mailbox.cuh>
#include <fa/sm90/tensor_maps.cuh>
#include <fa/sm90/visited_blocks.cuh>

namespace fa::sm90 {

template <class Config, class Memory>
class Producer {
  using QTile = typename Shape<Config>::QTile;
  using KVTile = typename Memory::KVTile;

 public:
  __device__ Producer(const Memory& smem, const TensorMaps& maps, const ForwardKernelArgs& args)
      : smem_(smem), maps_(maps), args_(args) {}

  __device__ void run() {
    ptx::tma_prefetch_map(maps_.q);
    ptx::tma_prefetch_map(maps_.k);
    ptx::tma_prefetch_map(maps_.v);
    ptx::tma_prefetch_map(maps_.o);
    typename Config::TileOrder::template Walk<Config> walk(args_);
    Tile tile, next;
    for (bool more = walk.next(tile); more; tile = next) {
      sequence_ = Config::Lengths::sequence(args_, tile.batch);
      Config::Queries::expect(*this, tile);
      post_tile<Config>(smem_.mail(), tile, sequence_, tile_parity_);
      walk.request();
      load(tile, [&] { more = walk.next(next); });
    }
    post_tile<Config>(smem_.mail(), kNoMoreTiles, sequence_, tile_parity_);
    walk.finish();
  }

  // The rows of Q wait in L2 until their buffer is empty.
  __device__ void prefetch_q(Tile tile) const {
#pragma unroll
    for (int w = 0; w < Config::kConsumers; ++w)
#pragma unroll
      for (int p = 0; p < QTile::kCount; ++p)
        ptx::tma_prefetch_4d(maps_.q, p * QTile::kColumns, tile.head * Config::Rows::kGroup,
                             q_row(tile, w), sequence_.q_batch);
  }

 private:
  // `meanwhile` runs once, after the load of the first block was issued.
  template <class Work>
  __device__ void load(Tile tile, Work meanwhile) {
    const auto [first, end] = visited_blocks<Config>(tile, sequence_, args_);
    int block = end - 1;
    kv_head_ = kv_head<Config>(tile, args_);
    if (block >= first) load_k(tile, block);
    load_q(tile);
    if (block >= first) load_v(tile, block);
    meanwhile();
    while (--block >= first) {
      load_k(tile, block);
      load_v(tile, block);
    }
    tile_parity_ ^= 1;
  }

  __device__ void load_k(Tile tile, int block) {
    ptx::mbarrier_wait(smem_.k_empty(ring_.stage), ring_.parity ^ 1);  // all have released it
    load_keys(smem_.k(ring_.stage), maps_.k, smem_.k_full(ring_.stage), tile, block);
  }

  __device__ void load_v(Tile tile, int block) {
    ptx::mbarrier_wait(smem_.v_empty(ring_.stage), ring_.parity ^ 1);  // all have released it
    load_keys(smem_.v(ring_.stage), maps_.v, smem_.v_full(ring_.stage), tile, block);
    ring_.advance();
  }

  __device__ void load_keys(KVTile to, const TensorMap& map, ptx::Mbarrier full, Tile tile,
                            int block) {
    ptx::mbarrier_arrive_expect(full, KVTile::kBytes);
    Config::Pages::load(to, map, full, kv_head_, block * Config::kBC, tile.batch, sequence_, args_);
  }

  __device__ void load_q(Tile tile) {
    if (Config::kConvertQueries) return;
#pragma unroll
    for (int w = 0; w < Config::kConsumers; ++w) {
      ptx::mbarrier_wait(smem_.q_empty(w), tile_parity_ ^ 1);  // the previous Q was read
      ptx::mbarrier_arrive_expect(smem_.q_full(w), Shape<Config>::kQLoadBytes);
#pragma unroll
      for (int p = 0; p < QTile::kCount; ++p)
        ptx::tma_load_4d(smem_.q(w).panel(p), maps_.q, smem_.q_full(w), p * QTile::kColumns,
                         tile.head * Config::Rows::kGroup, q_row(tile, w), sequence_.q_batch);
    }
  }

  __device__ int q_row(Tile tile, int warpgroup) const {
    const int row = tile.q_block * Shape<Config>::kBR + warpgroup * Shape<Config>::kRows;
    return sequence_.q_first + Config::Rows::position(row);
  }

  const Memory& smem_;
  const TensorMaps& maps_;
  const ForwardKernelArgs& args_;
  attn::Sequence sequence_ = {};
  int kv_head_ = 0;  // of the tile; a division per block would delay the copies
  Ring<Config::kStages> ring_;
  u32 tile_parity_ = 0;
};

}  // namespace fa::sm90
