// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA: K and V of its keys, ring buffers of Q and dO with the statistics of their
// rows, dS, dQ, and dV and dK on their way, then the mbarriers and the mailboxes. All addresses are constants.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/backward/work.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90::backward {

template <class Config>
struct SharedMemory {
  using KeyTile = typename Shape<Config>::KeyTile;
  using QueryTile = typename Shape<Config>::QueryTile;
  using ScoreTile = typename Shape<Config>::ScoreTile;
  static constexpr int kStages = Config::kStages;
  static constexpr int kStatBytes = Shape<Config>::kStatBytes;

  static constexpr u32 kK = kSmemStart;
  static constexpr u32 kV = kK + KeyTile::kBytes;
  static constexpr u32 kQ = kV + KeyTile::kBytes;
  static constexpr u32 kDO = kQ + kStages * QueryTile::kBytes;
  static constexpr u32 kDs = kDO + kStages * QueryTile::kBytes;
  static constexpr u32 kDq = kDs + Config::kDsStages * ScoreTile::kBytes;
  static constexpr u32 kGradient = kDq + Config::kDqBytes;
  static constexpr u32 kLse = kGradient + KeyTile::kBytes;
  static constexpr u32 kDelta = kLse + kStages * kStatBytes;
  static constexpr u32 kBarriers = kDelta + kStages * kStatBytes;
  static constexpr int kBytes = kBarriers - kSmemStart + Config::kBarrierBytes;

  static __device__ KeyTile k() { return KeyTile(kK); }
  static __device__ KeyTile v() { return KeyTile(kV); }
  static __device__ QueryTile q(int stage) { return QueryTile(kQ + stage * QueryTile::kBytes); }
  static __device__ QueryTile d_o(int stage) { return QueryTile(kDO + stage * QueryTile::kBytes); }
  static __device__ ScoreTile ds(int stage) { return ScoreTile(kDs + stage * ScoreTile::kBytes); }
  static __device__ KeyTile gradient() { return KeyTile(kGradient); }  // dV, then dK
  static __device__ u32 lse(int stage) { return kLse + stage * kStatBytes; }
  static __device__ u32 delta(int stage) { return kDelta + stage * kStatBytes; }

  // Full: the data has arrived. Empty: its readers are done.
  static __device__ ptx::Mbarrier k_full() { return barrier(0); }
  static __device__ ptx::Mbarrier v_full() { return barrier(1); }
  static __device__ ptx::Mbarrier keys_empty() { return barrier(2); }  // both K and V
  static __device__ ptx::Mbarrier mail_full(TileCount tile) { return barrier(3 + tile.mailbox()); }
  static __device__ ptx::Mbarrier mail_empty(TileCount tile) {
    return barrier(3 + kMailboxes + tile.mailbox());
  }
  static __device__ ptx::Mbarrier q_full(int stage) { return barrier(kOfTile + stage); }
  static __device__ ptx::Mbarrier q_empty(int stage) { return barrier(kOfTile + kStages + stage); }
  static __device__ ptx::Mbarrier d_o_full(int stage) {
    return barrier(kOfTile + 2 * kStages + stage);
  }
  static __device__ ptx::Mbarrier d_o_empty(int stage) {
    return barrier(kOfTile + 3 * kStages + stage);
  }
  static __device__ ptx::Mbarrier ds_full(int stage) { return barrier(kOfQueries + stage); }
  static __device__ ptx::Mbarrier ds_empty(int stage) {
    return barrier(kOfQueries + kDsBarriers + stage);
  }
  // Of the parts of staged dQ: full when the warpgroup of dQ is done with one, empty when the writer is.
  static __device__ ptx::Mbarrier dq_full(int part) {
    return barrier(kOfQueries + 2 * kDsBarriers + part);
  }
  static __device__ ptx::Mbarrier dq_empty(int part) {
    return barrier(kOfQueries + 2 * kDsBarriers + kDqParts + part);
  }
  static __device__ Mailbox mail(TileCount tile) {
    return {kBarriers + (kNumBarriers + kNumBarriers % 2) * ptx::kMbarrierBytes +
            tile.mailbox() * Mailbox::kBytes};
  }

  // Every warp arrives once at an empty barrier.
  static __device__ void init_barriers() {
    constexpr int kKeyWarps = Shape<Config>::kKeyWarps;
    ptx::mbarrier_init(k_full(), 1);
    ptx::mbarrier_init(v_full(), 1);
    ptx::mbarrier_init(keys_empty(), kKeyWarps + Config::kQueryWarps);
#pragma unroll
    for (u32 mailbox = 0; mailbox < kMailboxes; ++mailbox) {
      ptx::mbarrier_init(mail_full({mailbox}), 1);
      ptx::mbarrier_init(mail_empty({mailbox}),
                         kKeyWarps + Config::kQueryWarps + Config::kWriterWarps);
    }
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(q_full(stage), 1);
      ptx::mbarrier_init(q_empty(stage), kKeyWarps);
      ptx::mbarrier_init(d_o_full(stage), 1);
      ptx::mbarrier_init(d_o_empty(stage), kKeyWarps);
    }
#pragma unroll
    for (int stage = 0; stage < kDsBarriers; ++stage) {
      ptx::mbarrier_init(ds_full(stage), kKeyWarps);
      ptx::mbarrier_init(ds_empty(stage), Config::kQueryWarps);
    }
#pragma unroll
    for (int part = 0; part < kDqParts; ++part) {
      ptx::mbarrier_init(dq_full(part), 1);
      ptx::mbarrier_init(dq_empty(part), 1);
    }
    ptx::fence_mbarrier_init();  // TMA sees them
  }

 private:
  static constexpr int kDsBarriers = Config::kQueryWarps > 0 ? Config::kDsStages : 0;
  static constexpr int kDqParts = Config::kWriterWarps > 0 ? Shape<Config>::kDqPasses : 0;
  static constexpr int kOfTile = 3 + 2 * kMailboxes;  // barriers before those of Q and dO
  static constexpr int kOfQueries = kOfTile + 4 * kStages;
  static constexpr int kNumBarriers = kOfQueries + 2 * kDsBarriers + 2 * kDqParts;
  static_assert((kNumBarriers + 1) * ptx::kMbarrierBytes + kMailboxes * Mailbox::kBytes <=
                Config::kBarrierBytes);

  static __device__ ptx::Mbarrier barrier(int i) { return {kBarriers + i * ptx::kMbarrierBytes}; }
};

// Going round the stages of Q and dO. The stage is a constant in each turn of a schedule, so that the
// descriptors of its products are constants as well.

// Takes turns at all stages from `Stage` on, until Schedule::block<Stage>(w) says that there is no next
// block. Every tile starts at stage 0, so the stages after its last block are skipped.
template <class Schedule, int Stage = 0, class Warpgroup>
__device__ bool for_each_stage(Warpgroup& w) {
  if constexpr (Stage < Warpgroup::kStages) {
    if (Schedule::template block<Stage>(w)) return for_each_stage<Schedule, Stage + 1>(w);
    w.template skip_stages<Stage + 1>();
    return false;
  }
  return true;
}

// P of the first block. From here on each turn begins with the P of its block.
template <class Warpgroup>
__device__ void first_probabilities(Warpgroup& w) {
  w.template wait_q<0>();                           // Q has arrived
  w.issue_scores(w.s(), w.k(), w.template q<0>());  // S^T = K Q^T
  w.template wait_products<0>();                    // S is complete
  w.template exponentials<0>(w.s());                // S becomes P
  w.mask(w.s(), w.hides());
  w.convert_probabilities(w.p(), w.s());
}

// dK of the last block, whose turn ends with it. There is no next block.
template <int Stage, class Warpgroup>
__device__ bool last_keys(Warpgroup& w) {
  w.issue_accumulate(w.dk(), w.p(), w.template q_columns<Stage>());  // dK += dS^T Q
  w.store_dv();
  w.template wait_products<0>();  // dK is complete, Q was read
  w.template release_q<Stage>();
  return false;
}

}  // namespace fa::sm90::backward
