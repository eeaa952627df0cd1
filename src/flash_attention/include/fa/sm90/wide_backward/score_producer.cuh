// SPDX-License-Identifier: Apache-2.0
// The warp that loads the slices of Q and K of a tile, then those of dO and V.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/wide_backward/score_tile.cuh>

namespace fa::sm90::wide_backward {

struct ScoreMaps {
  const TensorMap &q, &k, &v, &d_o;
};

__device__ inline int num_slices(int columns) { return (columns + kPanelRows - 1) / kPanelRows; }

template <class Config>
class ScoreProducer {
  using Smem = ScoreMemory<Config>;

 public:
  __device__ ScoreProducer(const ScoreMaps& maps, const BackwardKernelArgs& args)
      : maps_(maps), args_(args) {}

  __device__ void run() {
    ScoreTile tile;
    ScoreWalk<Config> walk(args_);
    while (walk.next(tile)) {
      load(tile, maps_.q, maps_.k, args_.d_qk);
      load(tile, maps_.d_o, maps_.v, args_.d_v);
    }
  }

 private:
  __device__ void load(const ScoreTile& tile, const TensorMap& queries, const TensorMap& keys,
                       int columns) {
    const attn::Sequence& sequence = tile.sequence;
#pragma unroll 1
    for (int slice = 0; slice < num_slices(columns); ++slice) {
      Smem::pipeline().acquire(ring_);  // both have released it
      const ptx::Mbarrier full = Smem::pipeline().full(ring_.stage);
      const int column = slice * kPanelRows;
      if (lane_id() == 0) {
        ptx::mbarrier_arrive_expect(full, Smem::kSliceBytes);
        ptx::tma_load_4d(Smem::queries(ring_.stage).address, queries, full, column, tile.head,
                         sequence.q_first + tile.query, sequence.q_batch);
        ptx::tma_load_4d(Smem::keys(ring_.stage).address, keys, full, column, tile.kv_head,
                         sequence.k_first + tile.key, sequence.k_batch);
      }
      __syncwarp();
      ring_.advance();
    }
  }

  const ScoreMaps& maps_;
  const BackwardKernelArgs& args_;
  Ring<Config::kStages> ring_;
};

}  // namespace fa::sm90::wide_backward
