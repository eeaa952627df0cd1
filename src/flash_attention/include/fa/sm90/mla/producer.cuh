// SPDX-License-Identifier: Apache-2.0
// How the producer of MLA decoding loads blocks of K, part by part as these become empty.
#pragma once
#include <fa/sm90/mla/shared_memory.cuh>
#include <fa/sm90/split_v/producer.cuh>

namespace fa::sm90::mla {

template <class Config>
class Producer
    : public split_v::Producer<Producer<Config>, Config, SharedMemory<Config>, TensorMaps> {
  using Base = split_v::Producer<Producer<Config>, Config, SharedMemory<Config>, TensorMaps>;
  static constexpr int kHalfColumns = Tiles<Config>::kHalfColumns;

 public:
  using Base::Base;

  template <class Work>
  __device__ void load_block(const Tile& tile, int block, Work meanwhile) {
#pragma unroll
    for (int n = 0; n < kColumnParts; ++n) {
      const int part = nth_part(ring_.stage, n);
      if (n == kRotaryIndex)
        load_part(smem_.rotary(ring_.stage), part, tile, block);
      else
        load_part(smem_.v(ring_.stage, part), part, tile, block);
    }
    ring_.advance();
    meanwhile();
  }

 private:
  using Base::args_, Base::kv_head_, Base::maps_, Base::ring_, Base::sequence_, Base::smem_;

  template <class PartTile>
  __device__ void load_part(PartTile to, int part, const Tile& tile, int block) {
    const ptx::Mbarrier full = smem_.k_pipeline().full(ring_.stage, part);
    smem_.k_pipeline().acquire(ring_, part);  // the part was released
    ptx::mbarrier_arrive_expect(full, PartTile::kBytes);
    Config::Pages::load(to, maps_.k, full, kv_head_, block * Config::kBC, tile.batch, sequence_,
                        args_, part * kHalfColumns);
  }
};

}  // namespace fa::sm90::mla
