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
  static constexpr int kStatBytes = kPanelRows * static_cast<int>(sizeof(float));

  static constexpr u32 kQ = kSmemStart;
  static constexpr u32 kV = kQ + kQStages * Tile64::kBytes;
  static constexpr u32 kDO = kV + Tile64::kBytes;
  static constexpr u32 kP = kDO + kStages * Tile64::kBytes;
  static constexpr u32 kDs = kP + kStages * Panel::kBytes;
  static constexpr u32 kLse = kDs + kStages * Panel::kBytes;
  static constexpr u32 kDelta = kLse + kQStages * kStatBytes;
  static constexpr u32 kBarriers = kDelta + kDeltas * kStatBytes;
  static constexpr int kBytes = kBarriers - kSmemStart + Config::kBarrierBytes;

  static __device__ Tile64 q(int stage) { return Tile64(kQ + stage * Tile64::kBytes); }
  static __device__ Tile64 v() { return Tile64(kV); }
  static __device__ Tile64 d_o(int stage) { return Tile64(kDO + stage * Tile64::kBytes); }
  static __device__ Panel p(int stage) { return Panel(kP + stage * Panel::kBytes); }
  static __device__ Panel ds(int stage) { return Panel(kDs + stage * Panel::kBytes); }
  static __device__ u32 lse(int stage) { return kLse + stage * kStatBytes; }
  static __device__ u32 delta(int slot) { return kDelta + slot * kStatBytes; }

  // Full: the data is there. Empty: its readers are done.
  static __device__ ptx::Mbarrier v_full() { return barrier(0); }
  static __device__ ptx::Mbarrier q_full(int stage) { return barrier(1 + stage); }
  static __device__ ptx::Mbarrier q_empty(int stage) { return barrier(1 + kQStages + stage); }
  static __device__ ptx::Mbarrier d_o_full(int stage) { return others(0, stage); }
  static __device__ ptx::Mbarrier d_o_empty(int stage) { return others(1, stage); }
  static __device__ ptx::Mbarrier p_full(int stage) { return others(2, stage); }
  static __device__ ptx::Mbarrier p_empty(int stage) { return others(3, stage); }
  static __device__ ptx::Mbarrier ds_full(int stage) { return others(4, stage); }
  static __device__ ptx::Mbarrier ds_empty(int stage) { return others(5, stage); }
  static __device__ Mailbox mail() {
    return {kBarriers + (kNumBarriers + kNumBarriers % 2) * ptx::kMbarrierBytes};
  }

  // Every warp of a reader arrives once at an empty barrier, every warp of a writer at a full one.
  static __device__ void init_barriers() {
    ptx::mbarrier_init(v_full(), 1);
#pragma unroll
    for (int stage = 0; stage < kQStages; ++stage) {
      ptx::mbarrier_init(q_full(stage), 1);
      ptx::mbarrier_init(q_empty(stage), kWarps);
    }
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(d_o_full(stage), 1);
      ptx::mbarrier_init(d_o_empty(stage), 2 * kWarps);  // dP and dV read it
      ptx::mbarrier_init(p_full(stage), kWarps);
      ptx::mbarrier_init(p_empty(stage), kWarps);
      ptx::mbarrier_init(ds_full(stage), kWarps);
      ptx::mbarrier_init(ds_empty(stage), kWarps);
    }
    ptx::fence_mbarrier_init();  // TMA sees them
  }

 private:
  static constexpr int kNumBarriers = 1 + 2 * kQStages + 6 * kStages;
  static_assert((kNumBarriers + 1) * ptx::kMbarrierBytes + Mailbox::kBytes <=
                Config::kBarrierBytes);

  static __device__ ptx::Mbarrier barrier(int i) { return {kBarriers + i * ptx::kMbarrierBytes}; }
  static __device__ ptx::Mbarrier others(int kind, int stage) {
    return barrier(1 + 2 * kQStages + kind * kStages + stage);
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
