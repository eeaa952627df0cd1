// SPDX-License-Identifier: Apache-2.0
// The producer: one thread that walks the tiles, tells the consumers which, and keeps Q, K and V
// flowing into shared memory as buffers fall empty.
#pragma once
#include <fa/attn/key_range.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tensor_maps.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

template <class Config>
class Producer {
  using QTile = typename Shape<Config>::QTile;
  using KVTile = typename Shape<Config>::KVTile;

 public:
  __device__ Producer(const SharedMemory<Config>& smem, const TensorMaps& maps,
                      const ForwardKernelArgs& args)
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
      post(tile);
      walk.request();
      load(tile, [&] { more = walk.next(next); });
    }
    post({-1, 0, 0});
    walk.finish();
  }

  // The rows of Q wait in L2 until their buffer falls empty.
  __device__ void prefetch_q(Tile tile) const {
#pragma unroll
    for (int w = 0; w < Config::kConsumers; ++w)
#pragma unroll
      for (int p = 0; p < QTile::kCount; ++p)
        ptx::tma_prefetch_4d(maps_.q, p * QTile::kColumns, tile.head, q_row(tile, w),
                             sequence_.q_batch);
  }

 private:
  __device__ void post(Tile tile) {
    ptx::mbarrier_wait(smem_.mail_empty(), tile_parity_ ^ 1);
    ptx::st_shared_16(smem_.mail(), {static_cast<u32>(tile.q_block), static_cast<u32>(tile.head),
                                     static_cast<u32>(tile.batch), 0});
    Config::Lengths::write(sequence_, smem_.mail() + 16);
    ptx::mbarrier_arrive(smem_.mail_full());
  }

  // `meanwhile` runs once, when the first block is on its way.
  template <class Work>
  __device__ void load(Tile tile, Work meanwhile) {
    const attn::KeyRange<typename Config::Mask, Config::kBC> range(
        typename Config::Mask(args_), tile.q_block * Shape<Config>::kBR, Shape<Config>::kBR,
        sequence_);
    const int kv_head = tile.head / args_.heads_per_kv;
    const int first = range.first_block();
    int block = range.end_block() - 1;
    if (block >= first) load_k(kv_head, block);
    load_q(tile);
    if (block >= first) load_v(kv_head, block);
    meanwhile();
    while (--block >= first) {
      load_k(kv_head, block);
      load_v(kv_head, block);
    }
    tile_parity_ ^= 1;
  }

  __device__ void load_k(int kv_head, int block) {
    ptx::mbarrier_wait(smem_.k_empty(ring_.stage), ring_.parity ^ 1);
    load_tile<KVTile>(smem_.k(ring_.stage), maps_.k, smem_.k_full(ring_.stage), kv_head,
                      sequence_.k_first + block * Config::kBC, sequence_.k_batch);
  }

  __device__ void load_v(int kv_head, int block) {
    ptx::mbarrier_wait(smem_.v_empty(ring_.stage), ring_.parity ^ 1);
    load_tile<KVTile>(smem_.v(ring_.stage), maps_.v, smem_.v_full(ring_.stage), kv_head,
                      sequence_.k_first + block * Config::kBC, sequence_.k_batch);
    ring_.advance();
  }

  __device__ void load_q(Tile tile) {
#pragma unroll
    for (int w = 0; w < Config::kConsumers; ++w) {
      ptx::mbarrier_wait(smem_.q_empty(w), tile_parity_ ^ 1);
      load_tile<QTile>(smem_.q(w), maps_.q, smem_.q_full(w), tile.head, q_row(tile, w),
                       sequence_.q_batch);
    }
  }

  __device__ int q_row(Tile tile, int warpgroup) const {
    return sequence_.q_first + tile.q_block * Shape<Config>::kBR + warpgroup * kWarpgroupRows;
  }

  template <class AnyTile>
  static __device__ void load_tile(u32 smem, const TensorMap& map, u32 full, int head, int row,
                                   int batch) {
    ptx::mbarrier_arrive_expect(full, AnyTile::kBytes);
#pragma unroll
    for (int p = 0; p < AnyTile::kCount; ++p)
      ptx::tma_load_4d(smem + p * AnyTile::kPanelBytes, map, full, p * AnyTile::kColumns, head, row,
                       batch);
  }

  const SharedMemory<Config>& smem_;
  const TensorMaps& maps_;
  const ForwardKernelArgs& args_;
  attn::Sequence sequence_;
  Ring<Config::kStages> ring_;
  u32 tile_parity_ = 0;
};

}  // namespace fa::sm90
