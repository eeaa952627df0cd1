// SPDX-License-Identifier: Apache-2.0
// The producer: one thread that goes through the tiles, tells the consumers about each, and loads Q, K
// and the transpose of V into shared memory as buffers become empty.
#pragma once
#include <fa/attn/key_range.cuh>
#include <fa/ptx/bulk.cuh>
#include <fa/ptx/grid_dependency.cuh>
#include <fa/sm90/fp8/args.cuh>
#include <fa/sm90/fp8/shared_memory.cuh>
#include <fa/sm90/fp8/tensor_maps.cuh>
#include <fa/sm90/mailbox.cuh>

namespace fa::sm90::fp8 {

template <class Config>
class Producer {
  using QTile = typename Tiles<Config>::QTile;
  using KTile = typename Tiles<Config>::KTile;
  using VTile = typename Tiles<Config>::VTile;
  static constexpr int kTileRows = Config::kConsumers * kWarpgroupRows;

 public:
  __device__ Producer(const SharedMemory<Config>& smem, const TensorMaps& maps,
                      const Fp8KernelArgs& args)
      : smem_(smem), maps_(maps), args_(args) {}

  __device__ void run() {
    ptx::tma_prefetch_map(maps_.q);
    ptx::tma_prefetch_map(maps_.k);
    ptx::wait_for_grid();  // V is transposed
    typename Config::TileOrder::template Walk<Config> walk(args_);
    Tile tile, next;
    for (bool more = walk.next(tile); more; tile = next) {
      sequence_ = Config::Lengths::sequence(args_, tile.batch);
      post_tile<Config>(smem_.mail(), tile, sequence_, mail_parity_);
      walk.request();
      load(tile, [&] { more = walk.next(next); });
      mail_parity_ ^= 1;
    }
    post_tile<Config>(smem_.mail(), kNoMoreTiles, sequence_, mail_parity_);
    walk.finish();
  }

 private:
  // `meanwhile` runs once, after the load of the first block was issued.
  template <class Work>
  __device__ void load(Tile tile, Work meanwhile) {
    const attn::KeyRange<typename Config::Mask, Config::kBC> range(
        typename Config::Mask(args_), tile.q_block * kTileRows, kTileRows, sequence_);
    const int kv_head = tile.head / args_.heads_per_kv;
    const char* const values = static_cast<const char*>(args_.v_tiles) +
                               first_in_tiles(args_, tile.batch, kv_head) * VTile::kRows;
    const int first = range.first_block();
    int block = range.end_block() - 1;
    if (block >= first) load_k(kv_head, block);
    load_q(tile);
    if (block >= first) load_v(values, block);
    meanwhile();
    while (--block >= first) {
      load_k(kv_head, block);
      load_v(values, block);
    }
  }

  __device__ void load_k(int kv_head, int block) {
    const ptx::Mbarrier full = smem_.k_full(ring_.stage);
    ptx::mbarrier_wait(smem_.k_empty(ring_.stage), ring_.parity ^ 1);  // all have released it
    ptx::mbarrier_arrive_expect(full, KTile::kBytes);
    const KTile to = smem_.k(ring_.stage);
#pragma unroll
    for (int p = 0; p < KTile::kCount; ++p)
      ptx::tma_load_4d(to.panel(p), maps_.k, full, p * KTile::kRowBytes, kv_head,
                       sequence_.k_first + block * Config::kBC, sequence_.k_batch);
  }

  __device__ void load_v(const char* values, int block) {
    const ptx::Mbarrier full = smem_.v_full(ring_.stage);
    ptx::mbarrier_wait(smem_.v_empty(ring_.stage), ring_.parity ^ 1);  // all have released it
    ptx::mbarrier_arrive_expect(full, VTile::kBytes);
    ptx::bulk_load(smem_.v(ring_.stage).address, values + static_cast<i64>(block) * VTile::kBytes,
                   VTile::kBytes, full);
    ring_.advance();
  }

  __device__ void load_q(Tile tile) {
    const ptx::Mbarrier full = smem_.q_full(q_ring_.stage);
    ptx::mbarrier_wait(smem_.q_empty(q_ring_.stage), q_ring_.parity ^ 1);  // its last Q was read
    ptx::mbarrier_arrive_expect(full, Config::kConsumers * QTile::kBytes);
#pragma unroll
    for (int w = 0; w < Config::kConsumers; ++w)
#pragma unroll
      for (int p = 0; p < QTile::kCount; ++p)
        ptx::tma_load_4d(
            smem_.q(q_ring_.stage, w).panel(p), maps_.q, full, p * QTile::kRowBytes, tile.head,
            sequence_.q_first + tile.q_block * kTileRows + w * kWarpgroupRows, sequence_.q_batch);
    q_ring_.advance();
  }

  const SharedMemory<Config>& smem_;
  const TensorMaps& maps_;
  const Fp8KernelArgs& args_;
  attn::Sequence sequence_ = {};
  Ring<Config::kStages> ring_;
  Ring<Config::kQBuffers> q_ring_;
  u32 mail_parity_ = 0;
};

}  // namespace fa::sm90::fp8
