// SPDX-License-Identifier: Apache-2.0
// Loads of the warpgroups that split the products of a tile: a warp of one loads K and Q, a warp of another
// V and dO, block after block of all heads that share the keys.
#pragma once
#include <fa/ptx/bulk.cuh>
#include <fa/sm90/backward/split_memory.cuh>
#include <fa/sm90/backward/tile_work.cuh>

namespace fa::sm90::backward {

// Where the next block of queries is: its head, and its first row.
template <class Config>
class QueryWalk {
  using Smem = SplitMemory<Config>;

 public:
  __device__ QueryWalk(const BackwardKernelArgs& args, const attn::Sequence& sequence, int batch)
      : sequence_(sequence),
        block_(Smem::mail().read(Word::kFirstBlock)),
        head_(Smem::mail().read(Word::kKvHead) * args.heads_per_kv),
        left_(Smem::mail().read(Word::kSteps)),
        stats_(stat_row(args, head_, batch)),
        stat_rows_(args.stat_rows) {}

  __device__ bool has_block() const { return left_ > 0; }
  __device__ i64 stats() const { return stats_ + block_ * Config::kBR; }
  __device__ void load(typename Smem::Tile64 to, const TensorMap& map, ptx::Mbarrier full) const {
    load_rows(to, map, full, head_, sequence_.q_first + block_ * Config::kBR, sequence_.q_batch);
  }
  __device__ void advance() {
    --left_;
    if (++block_ < Smem::mail().read(Word::kEndBlock)) return;
    block_ = Smem::mail().read(Word::kFirstBlock);
    ++head_;
    stats_ += stat_rows_;
  }

  static __device__ void load_rows(typename Smem::Tile64 to, const TensorMap& map,
                                   ptx::Mbarrier full, int head, int row, int batch) {
    using Tile64 = typename Smem::Tile64;
#pragma unroll
    for (int p = 0; p < Tile64::kCount; ++p)
      ptx::tma_load_4d(to.panel(p), map, full, p * Tile64::kColumns, head, row, batch);
  }

 private:
  const attn::Sequence& sequence_;
  int block_, head_, left_;
  i64 stats_;
  const int stat_rows_;
};

}  // namespace fa::sm90::backward
