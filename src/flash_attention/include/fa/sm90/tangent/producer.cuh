// SPDX-License-Identifier: Apache-2.0
// The producer: one thread that goes through the tiles, tells the consumers about each, and loads Q, K and V
// with their tangents as buffers become empty.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/async.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tangent/args.cuh>
#include <fa/sm90/tangent/shared_memory.cuh>
#include <fa/sm90/tile.cuh>
#include <fa/sm90/tile_order.cuh>

namespace fa::sm90::tangent {

template <class Config>
class Producer {
  using Memory = SharedMemory<Config>;

 public:
  __device__ Producer(const Memory& smem, const TensorMaps& maps, const ForwardKernelArgs& args)
      : smem_(smem), maps_(maps), args_(args) {}

  __device__ void run() {
    post_tiles<Config>(smem_.mail(), args_, sequence_, tile_parity_,
                       [this](const Tile& tile) { load(tile); });
  }

 private:
  __device__ void load(const Tile& tile) {
    const auto [first, end] = visited_blocks<Config>(tile, sequence_, args_);
    const int kv_head = sm90::kv_head<Config>(tile, args_);
    prefetch_q(tile);
    if (end > first) load_k(kv_head, end - 1);
    load_q(tile);
    for (int block = end - 1; block >= first; --block) {
      load_keys(smem_.v_pipeline(), maps_.v, maps_.v_tangent, kv_head, block);
      ring_.advance();
      if (block > first) load_k(kv_head, block - 1);
    }
  }

  // The rows of Q and dQ wait in L2 until their buffers are empty.
  __device__ void prefetch_q(const Tile& tile) const {
    using QTile = typename Shape<Config>::QTile;
#pragma unroll
    for (int w = 0; w < Config::kConsumers; ++w)
#pragma unroll
      for (int p = 0; p < QTile::kCount; ++p)
#pragma unroll
        for (const TensorMap* map : {&maps_.q, &maps_.q_tangent})
          ptx::tma_prefetch_4d(*map, p * QTile::kColumns, tile.head, q_row(tile, w),
                               sequence_.q_batch);
  }

  __device__ int q_row(const Tile& tile, int warpgroup) const {
    return tile.q_block * Shape<Config>::kBR + warpgroup * kWarpgroupRows;
  }

  __device__ void load_q(const Tile& tile) {
#pragma unroll
    for (int w = 0; w < Config::kConsumers; ++w) {
      smem_.q_pipeline().acquire(w, tile_parity_);  // the previous Q was read
      load_pair(smem_.q_pipeline().tile(w), smem_.q_pipeline().full(w), maps_.q, maps_.q_tangent,
                tile.head, q_row(tile, w));
    }
  }

  __device__ void load_k(int kv_head, int block) {
    load_keys(smem_.k_pipeline(), maps_.k, maps_.k_tangent, kv_head, block);
  }

  __device__ void load_keys(typename Memory::KVPipeline to, const TensorMap& value,
                            const TensorMap& tangent, int kv_head, int block) {
    to.acquire(ring_);  // all have released the stage
    load_pair(to.tile(ring_.stage), to.full(ring_.stage), value, tangent, kv_head,
              block * Config::kBC);
  }

  template <class PairTile>
  __device__ void load_pair(PairTile to, ptx::Mbarrier full, const TensorMap& value,
                            const TensorMap& tangent, int head, int row) {
    ptx::mbarrier_arrive_expect(full, PairTile::kBytes);
    load_tile(to.value(), value, full, head, row);
    load_tile(to.tangent(), tangent, full, head, row);
  }

  template <class AnyTile>
  __device__ void load_tile(AnyTile to, const TensorMap& map, ptx::Mbarrier full, int head,
                            int row) {
#pragma unroll
    for (int p = 0; p < AnyTile::kCount; ++p)
      ptx::tma_load_4d(to.panel(p), map, full, p * AnyTile::kColumns, head, row, sequence_.q_batch);
  }

  const Memory& smem_;
  const TensorMaps& maps_;
  const ForwardKernelArgs& args_;
  attn::Sequence sequence_ = {};
  Ring<Config::kStages> ring_;
  u32 tile_parity_ = 0;
};

}  // namespace fa::sm90::tangent
