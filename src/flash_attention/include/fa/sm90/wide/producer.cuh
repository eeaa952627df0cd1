// SPDX-License-Identifier: Apache-2.0
// How the producer of wide heads loads a block of K and V, parts and halves as these become empty.
#pragma once
#include <fa/sm90/split_v/producer.cuh>
#include <fa/sm90/wide/shared_memory.cuh>

namespace fa::sm90::wide {

template <class Config>
class Producer
    : public split_v::Producer<Producer<Config>, Config, SharedMemory<Config>, TensorMaps> {
  using Base = split_v::Producer<Producer<Config>, Config, SharedMemory<Config>, TensorMaps>;
  using T = Tiles<Config>;

 public:
  using Base::Base;

  template <class Work>
  __device__ void load_block(const Tile& tile, int block, Work meanwhile) {
#pragma unroll
    for (int part = 0; part < T::kColumnParts - 1; ++part)
      load_part(typename T::PartTile(smem_.k_part(part)), part, tile, block);
    load_part(typename T::LastTile(smem_.k_part(T::kColumnParts - 1)), T::kColumnParts - 1, tile,
              block);
    meanwhile();
    // The warpgroup that computes the scores of this block does so before it multiplies with the V before,
    // so its half is released last.
#pragma unroll
    for (int n = 0; n < kHalves; ++n) {
      const int half = n == 0 ? 1 - ring_.stage : ring_.stage;
      smem_.v_pipeline().acquire(half, ring_.stage);  // the previous V was read
      load_keys(smem_.v(half), maps_.v, smem_.v_pipeline().full(half), tile, block,
                half * T::kHalfColumns);
    }
    ring_.advance();
  }

 private:
  using Base::args_, Base::kv_head_, Base::maps_, Base::ring_, Base::sequence_, Base::smem_;

  template <class PartTile>
  __device__ void load_part(PartTile to, int part, const Tile& tile, int block) {
    // The previous K was read: that of the other stage, which is a phase behind if it comes after this one.
    ptx::mbarrier_wait(smem_.k_pipeline().empty(1 - ring_.stage, part),
                       ring_.parity ^ (1 - ring_.stage));
    load_keys(to, maps_.k, smem_.k_pipeline().full(ring_.stage, part), tile, block,
              part * T::kPartColumns);
  }

  template <class KeysTile>
  __device__ void load_keys(KeysTile to, const TensorMap& map, ptx::Mbarrier full, const Tile& tile,
                            int block, int column) {
    ptx::mbarrier_arrive_expect(full, KeysTile::kBytes);
    Config::Pages::load(to, map, full, kv_head_, block * Config::kBC, tile.batch, sequence_, args_,
                        column);
  }
};

}  // namespace fa::sm90::wide
