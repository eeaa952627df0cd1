// SPDX-License-Identifier: Apache-2.0
// The producer of 8-bit kernels goes through the tiles, tells the consumers about each, and loads Q, and K
// and V as Config::Values has them, as buffers become empty. It is one thread, or, if the keys are in pages, a
// warp whose lanes wait and load K together. Its first lane does the rest.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/ptx/async.cuh>
#include <fa/sm90/fp8/args.cuh>
#include <fa/sm90/fp8/shared_memory.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tile_order.cuh>

namespace fa::sm90::fp8 {

template <class Config>
class Producer {
  using QTile = typename Tiles<Config>::QTile;
  using KTile = typename Tiles<Config>::KTile;
  using VTile = typename Tiles<Config>::VTile;
  using Values = typename Config::Values;
  using Source = typename Values::template Source<Config>;
  static constexpr int kTileRows = Config::kConsumers * kWarpgroupRows;
  static constexpr bool kByWarp = Config::Pages::kByWarp;

 public:
  static constexpr int kThreads = kByWarp ? kWarpSize : 1;

  __device__ Producer(const SharedMemory<Config>& smem, const typename Values::Maps& maps,
                      const Fp8KernelArgs& args)
      : smem_(smem), maps_(maps), args_(args) {}

  __device__ void run() {
    if (leads()) {
      ptx::tma_prefetch_map(maps_.q);
      ptx::tma_prefetch_map(maps_.k);
    }
    Values::before_loads(maps_);
    typename Config::TileOrder::template Walk<Config> walk(args_);
    Tile tile = {}, next = {};
    for (bool more = next_tile<Config, kByWarp>(walk, tile); more; tile = next) {
      sequence_ = Config::Lengths::sequence(args_, tile.batch);
      post_tile<Config>(smem_.mail(), tile, sequence_, mail_parity_, leads());
      if (leads()) walk.request();
      load(tile, [&] { more = next_tile<Config, kByWarp>(walk, next); });
      mail_parity_ ^= 1;
    }
    post_tile<Config>(smem_.mail(), kNoMoreTiles, sequence_, mail_parity_, leads());
    if (leads()) walk.finish();
  }

 private:
  static __device__ bool leads() { return !kByWarp || lane_id() == 0; }

  // `meanwhile` runs once, after the load of the first block was issued.
  template <class Work>
  __device__ void load(Tile tile, Work meanwhile) {
    const attn::KeyRange<typename Config::Mask, Config::kBC> range(
        typename Config::Mask(args_), tile.q_block * kTileRows, kTileRows, sequence_);
    const int first = range.first_block();
    int block = range.end_block() - 1;
    Source source(maps_, args_, sequence_, tile.batch, tile.head / args_.heads_per_kv, block);
    if (block >= first) load_k(source, block);
    load_q(tile);
    if (block >= first) load_v(source, block);
    meanwhile();
    while (--block >= first) {
      load_k(source, block);
      load_v(source, block);
    }
  }

  __device__ void load_k(Source& source, int block) {
    const ptx::Mbarrier full = smem_.k_pipeline().full(ring_.stage);
    smem_.k_pipeline().acquire(ring_);  // all have released the stage
    Config::Pages::expect(full, KTile::kBytes);
    source.load_k(smem_.k(ring_.stage), full, block);
  }

  __device__ void load_v(const Source& source, int block) {
    const ptx::Mbarrier full = smem_.v_pipeline().full(ring_.stage);
    smem_.v_pipeline().acquire(ring_);  // all have released the stage
    if (leads()) {
      ptx::mbarrier_arrive_expect(full, VTile::kLoadedBytes);
      source.load_v(smem_.v(ring_.stage), full, block);
    }
    ring_.advance();
  }

  __device__ void load_q(Tile tile) {
    const ptx::Mbarrier full = smem_.q_pipeline().full(q_ring_.stage);
    smem_.q_pipeline().acquire(q_ring_);  // the Q before it was read
    if (leads()) {
      ptx::mbarrier_arrive_expect(full, Config::kConsumers * QTile::kBytes);
#pragma unroll
      for (int w = 0; w < Config::kConsumers; ++w)
#pragma unroll
        for (int p = 0; p < QTile::kCount; ++p)
          ptx::tma_load_4d(
              smem_.q(q_ring_.stage, w).panel(p), maps_.q, full, p * QTile::kRowBytes, tile.head,
              sequence_.q_first + tile.q_block * kTileRows + w * kWarpgroupRows, sequence_.q_batch);
    }
    q_ring_.advance();
  }

  const SharedMemory<Config>& smem_;
  const typename Values::Maps& maps_;
  const Fp8KernelArgs& args_;
  attn::Sequence sequence_ = {};
  Ring<Config::kStages> ring_;
  Ring<Config::kQBuffers> q_ring_;
  u32 mail_parity_ = 0;
};

}  // namespace fa::sm90::fp8
