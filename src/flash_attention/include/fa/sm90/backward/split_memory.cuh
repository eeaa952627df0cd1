// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA whose warpgroups split the products of a tile of 64 keys: a ring of K and
// then Q, V, a ring of dO, the statistics of their rows, P and dS, then the mbarriers and the mailbox.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/backward/work.cuh>
#include <fa/sm90/backward/workspace.cuh>

namespace fa::sm90::backward {

template <class Config>
struct SplitMemory {
  using Tile64 = SharedTile<Config::kDHead, kPanelRows>;
  static constexpr int kQStages = Config::kStages + 1;  // the first item is K, which leaves at once
  static constexpr int kStages = Config::kStages;
  static constexpr int kDeltas = 2 * kStages;  // dO is released before its delta was read
  using QPipeline = Pipeline<Tile64, kQStages>;
  using DOPipeline = Pipeline<Tile64, kStages>;
  using ScorePipeline = Pipeline<Panel, kStages>;  // of P, and of dS
  using VBarriers = PipelineBarriers<1, 1, 0>;     // V is loaded once
  static constexpr int kStatBytes = kPanelRows * static_cast<int>(sizeof(float));

  static constexpr u32 kQ = kSmemStart;
  static constexpr u32 kV = kQ + QPipeline::kTileBytes;
  static constexpr u32 kDO = kV + Tile64::kBytes;
  static constexpr u32 kP = kDO + DOPipeline::kTileBytes;
  static constexpr u32 kDs = kP + ScorePipeline::kTileBytes;
  static constexpr u32 kLse = kDs + ScorePipeline::kTileBytes;
  static constexpr u32 kDelta = kLse + kQStages * kStatBytes;
  static constexpr u32 kVBarriers = kDelta + kDeltas * kStatBytes;
  static constexpr u32 kQBarriers = kVBarriers + VBarriers::kBarrierBytes;
  static constexpr u32 kDOBarriers = kQBarriers + QPipeline::kBarrierBytes;
  static constexpr u32 kPBarriers = kDOBarriers + DOPipeline::kBarrierBytes;
  static constexpr u32 kDsBarriers = kPBarriers + ScorePipeline::kBarrierBytes;
  static constexpr u32 kMail = Mailbox::after(kDsBarriers + ScorePipeline::kBarrierBytes);
  static constexpr int kBytes = kVBarriers - kSmemStart + Config::kBarrierBytes;
  static_assert(kMail + Mailbox::kBytes <= kSmemStart + kBytes);

  static __device__ VBarriers v_pipeline() { return {kVBarriers}; }
  static __device__ QPipeline q_pipeline() { return {kQ, kQBarriers}; }
  static __device__ DOPipeline d_o_pipeline() { return {kDO, kDOBarriers}; }
  static __device__ ScorePipeline p_pipeline() { return {kP, kPBarriers}; }
  static __device__ ScorePipeline ds_pipeline() { return {kDs, kDsBarriers}; }
  static __device__ Tile64 q(int stage) { return q_pipeline().tile(stage); }
  static __device__ Tile64 v() { return Tile64(kV); }
  static __device__ Tile64 d_o(int stage) { return d_o_pipeline().tile(stage); }
  static __device__ Panel p(int stage) { return p_pipeline().tile(stage); }
  static __device__ Panel ds(int stage) { return ds_pipeline().tile(stage); }
  static __device__ u32 lse(int stage) { return kLse + stage * kStatBytes; }
  static __device__ u32 delta(int slot) { return kDelta + slot * kStatBytes; }

  static __device__ Mailbox mail() { return {kMail}; }

  // Every warp of a reader arrives once at an empty barrier, every warp of a writer at a full one.
  static __device__ void init_barriers() {
    v_pipeline().init_full(0, 1);
#pragma unroll
    for (int stage = 0; stage < kQStages; ++stage) q_pipeline().init(stage, 1, kWarpgroupWarps);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      d_o_pipeline().init(stage, 1, 2 * kWarpgroupWarps);  // dP and dV read it
      p_pipeline().init(stage, kWarpgroupWarps, kWarpgroupWarps);
      ds_pipeline().init(stage, kWarpgroupWarps, kWarpgroupWarps);
    }
    ptx::fence_mbarrier_init();  // TMA sees them
  }
};

// Loads of the warpgroups that split the products of a tile: a warp of one loads K and Q, a warp of another
// V and dO, block after block of all heads that share the keys.

// Where the next block of queries is: its head, and its first row.
template <class Config>
class QueryWalk {
  using Smem = SplitMemory<Config>;

 public:
  __device__ QueryWalk(const BackwardKernelArgs& args, const attn::Sequence& sequence, int batch)
      : sequence_(sequence),
        block_(Smem::mail().read(Word::kFirstBlock)),
        head_(Smem::mail().read(Word::kHead)),
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
