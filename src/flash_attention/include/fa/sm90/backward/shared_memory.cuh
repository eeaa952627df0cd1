// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA: K and V of its keys, ring buffers of Q and dO with the statistics of their
// rows, dS, dQ, dV and dK on their way, then the mbarriers and the mailboxes. All addresses are
// constants.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/backward/work.cuh>
#include <fa/sm90/pipeline.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90::backward {

// The barriers of the mailboxes.
struct MailBarriers : PipelineBarriers<kMailboxes> {
  __device__ void acquire(TileCount tile) const {
    ptx::mbarrier_wait(empty(tile.mailbox()), tile.mail_parity() ^ 1);
  }
  __device__ void wait(TileCount tile) const {
    ptx::mbarrier_wait(full(tile.mailbox()), tile.mail_parity());
  }
};

template <class Config>
struct SharedMemory {
  using KeyTile = typename Shape<Config>::KeyTile;
  using QueryTile = typename Shape<Config>::QueryTile;
  using ScoreTile = typename Shape<Config>::ScoreTile;
  static constexpr int kStages = Config::kStages;
  using QueryPipeline = Pipeline<QueryTile, kStages>;  // of Q, and of dO
  using KeyBarriers = PipelineBarriers<1, 2, 1>;       // of K and V, which are released together
  static constexpr int kKPart = 0, kVPart = 1;
  using DsBarriers = PipelineBarriers<(Config::kQueryWarps > 0 ? Config::kDsStages : 0)>;
  // Of the parts of staged dQ: full when the warpgroup of dQ is done with one, empty when the writer is.
  using DqBarriers = PipelineBarriers<(Config::kWriterWarps > 0 ? Shape<Config>::kDqPasses : 0)>;
  // Of the copies whose buffers the clearer completes: of Q and of dO by stages, of K, and of V.
  static constexpr int kQLanded = 0, kDOLanded = kStages, kKLanded = 2 * kStages;
  static constexpr int kVLanded = kKLanded + 1;
  static constexpr int kClearerWarps = Config::Lengths::kPerBatch ? 1 : 0;
  using LandedBarriers = PipelineBarriers<kClearerWarps*(kVLanded + 1), 1, 0>;
  static constexpr int kStatBytes = Shape<Config>::kStatBytes;
  using BiasTile = SharedTile<Config::kBC, Config::kBR, 64>;
  static constexpr int kBiasBytes = Config::Function::kBias ? BiasTile::kBytes : 0;
  using BiasBarriers = PipelineBarriers<(Config::Function::kBias ? 1 : 0)>;

  static constexpr u32 kK = kSmemStart;
  static constexpr u32 kV = kK + KeyTile::kBytes;
  static constexpr u32 kQ = kV + KeyTile::kBytes;
  static constexpr u32 kDO = kQ + QueryPipeline::kTileBytes;
  static constexpr u32 kDs = kDO + QueryPipeline::kTileBytes;
  static constexpr u32 kDq = kDs + Config::kDsStages * ScoreTile::kBytes;
  static constexpr u32 kGradient = kDq + Config::kDqBytes;
  static constexpr u32 kBias = kGradient + KeyTile::kBytes;
  static constexpr u32 kLse = kBias + kBiasBytes;
  static constexpr u32 kDelta = kLse + kStages * kStatBytes;
  static constexpr u32 kKeyBarriers = kDelta + kStages * kStatBytes;
  static constexpr u32 kMailBarriers = kKeyBarriers + KeyBarriers::kBarrierBytes;
  static constexpr u32 kQBarriers = kMailBarriers + MailBarriers::kBarrierBytes;
  static constexpr u32 kDOBarriers = kQBarriers + QueryPipeline::kBarrierBytes;
  static constexpr u32 kDsBarriers = kDOBarriers + QueryPipeline::kBarrierBytes;
  static constexpr u32 kDqBarriers = kDsBarriers + DsBarriers::kBarrierBytes;
  static constexpr u32 kLandedBarriers = kDqBarriers + DqBarriers::kBarrierBytes;
  static constexpr u32 kBiasBarriers = kLandedBarriers + LandedBarriers::kBarrierBytes;
  static constexpr u32 kMail = Mailbox::after(kBiasBarriers + BiasBarriers::kBarrierBytes);
  static constexpr int kBytes = kKeyBarriers - kSmemStart + Config::kBarrierBytes;
  static_assert(kMail + kMailboxes * Mailbox::kBytes <= kSmemStart + kBytes);

  static __device__ KeyTile k() { return KeyTile(kK); }
  static __device__ KeyTile v() { return KeyTile(kV); }
  static __device__ QueryTile q(int stage) { return q_pipeline().tile(stage); }
  static __device__ QueryTile d_o(int stage) { return d_o_pipeline().tile(stage); }
  static __device__ ScoreTile ds(int stage) { return ScoreTile(kDs + stage * ScoreTile::kBytes); }
  static __device__ KeyTile gradient() { return KeyTile(kGradient); }  // dV, then dK
  static __device__ BiasTile bias() { return BiasTile(kBias); }
  static __device__ u32 lse(int stage) { return kLse + stage * kStatBytes; }
  static __device__ u32 delta(int stage) { return kDelta + stage * kStatBytes; }

  static __device__ KeyBarriers key_pipeline() { return {kKeyBarriers}; }
  static __device__ MailBarriers mail_pipeline() { return {kMailBarriers}; }
  static __device__ QueryPipeline q_pipeline() { return {kQ, kQBarriers}; }
  static __device__ QueryPipeline d_o_pipeline() { return {kDO, kDOBarriers}; }
  static __device__ DsBarriers ds_pipeline() { return {kDsBarriers}; }
  static __device__ DqBarriers dq_pipeline() { return {kDqBarriers}; }
  static __device__ LandedBarriers landed() { return {kLandedBarriers}; }
  static __device__ BiasBarriers bias_pipeline() { return {kBiasBarriers}; }
  static __device__ Mailbox mail(TileCount tile) {
    return {kMail + tile.mailbox() * Mailbox::kBytes};
  }

  // Every warp arrives once at an empty barrier.
  static __device__ void init_barriers() {
    constexpr int kKeyWarps = Shape<Config>::kKeyWarps;
    key_pipeline().init_full(0, 1, kKPart);
    key_pipeline().init_full(0, 1, kVPart);
    key_pipeline().init_empty(0, kKeyWarps + Config::kQueryWarps);
#pragma unroll
    for (int mailbox = 0; mailbox < kMailboxes; ++mailbox)
      mail_pipeline().init(mailbox, 1,
                           kKeyWarps + Config::kQueryWarps + Config::kWriterWarps + kClearerWarps);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      q_pipeline().init(stage, 1, kKeyWarps);
      d_o_pipeline().init(stage, 1, kKeyWarps);
    }
#pragma unroll
    for (int stage = 0; stage < DsBarriers::kStages; ++stage)
      ds_pipeline().init(stage, kKeyWarps, Config::kQueryWarps);
#pragma unroll
    for (int part = 0; part < DqBarriers::kStages; ++part) dq_pipeline().init(part, 1, 1);
#pragma unroll
    for (int copy = 0; copy < LandedBarriers::kStages; ++copy) landed().init_full(copy, 1);
    if constexpr (Config::Function::kBias) bias_pipeline().init(0, 1, kKeyWarps);
    ptx::fence_mbarrier_init();  // TMA sees them
  }
};

// The order in which all warps go through the blocks of queries that visit a tile. Where tiles take
// turns at a block, the last block comes first: under a causal mask all tiles visit it.
template <class Config>
struct BlockWalk {
  static constexpr bool kLastFirst = Config::kWriterWarps > 0;

  // The first block, and the next one. After the last block of a head comes its first one again, and
  // next() returns true.
  static __device__ int start(Mailbox mail) {
    return kLastFirst ? mail.read(Word::kEndBlock) - 1 : mail.read(Word::kFirstBlock);
  }
  static __device__ bool next(int& block, Mailbox mail) {
    const int end = mail.read_alone(kLastFirst ? Word::kFirstBlock : Word::kEndBlock);
    if (kLastFirst ? --block >= end : ++block < end) return false;
    block = kLastFirst ? mail.read_alone(Word::kEndBlock) - 1 : mail.read_alone(Word::kFirstBlock);
    return true;
  }
  // The n-th of the blocks from `first` to `end`, with n from `first` on.
  static __device__ int nth(int n, int first, int end) {
    return kLastFirst ? first + end - 1 - n : n;
  }
};

// Waits for the next tile, and reads how many blocks visit it and which comes first. False after the last tile.
template <class Config>
__device__ bool take_tile(TileCount tile, int& steps, int& block) {
  SharedMemory<Config>::mail_pipeline().wait(tile);  // it is in the mailbox
  const Mailbox mail = SharedMemory<Config>::mail(tile);
  if (mail.read(Word::kKeyFirst) == kNoMoreTiles) return false;
  steps = mail.read(Word::kSteps);
  block = BlockWalk<Config>::start(mail);
  return true;
}

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
  w.draw();
  w.template wait_products<0>();      // S is complete
  w.template exponentials<0>(w.s());  // S becomes P
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

// K in 16 bits, as the A operand: 16 columns in four registers.
template <class Config>
struct KeyFragments {
  u32 step[Config::kDHead / 16][4];
};

// The slot KeyOperand: where the products S^T = K Q^T of a key warpgroup read K.
template <class T, class Config>
concept KeyOperandSlot = requires(typename T::template Of<Config, 0>& k) {
  k.read();
  k.operand();
};

}  // namespace fa::sm90::backward

namespace fa::sm90::backward::key_operand {

struct Shared {
  template <class Config, int Warpgroup>
  struct Of {
    __device__ void read() {}
    static __device__ typename Shape<Config>::KeyTile::RowOperand operand() {
      return rows_of(SharedMemory<Config>::k(), Warpgroup).row_operand();
    }
  };
};

}  // namespace fa::sm90::backward::key_operand

namespace fa::sm90::backward::bias {

// Nothing is loaded beside Q for a user's function.
struct None {
  template <class Config>
  struct Of {
    __device__ void wait() {}
    __device__ void release() const {}
    static __device__ const attn::Place& at(const attn::Place& place, int) { return place; }
  };
};

}  // namespace fa::sm90::backward::bias
