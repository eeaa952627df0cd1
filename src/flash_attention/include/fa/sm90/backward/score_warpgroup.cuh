// SPDX-License-Identifier: Apache-2.0
// The first of three warpgroups that split the products of a tile: S^T = K Q^T with K in registers, P,
// dP^T = V dO^T and dS. It hands P^T and dS^T over in shared memory. The exponentials run under dP, the
// derivatives under the next S.
#pragma once
#include <fa/backward_args.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/backward/products.cuh>
#include <fa/sm90/backward/split_memory.cuh>
#include <fa/sm90/backward/staged_rows.cuh>

namespace fa::sm90::backward {

template <class Config>
class ScoreWarpgroup : ScoreChange<Config> {
  using Smem = SplitMemory<Config>;
  using Math = Products<Config>;
  using Scores = typename Math::Scores;
  using Pairs = typename Math::Pairs;
  using Tile64 = typename Smem::Tile64;
  using Derivative = typename Config::Derivative;
  static constexpr int kDimSteps = Config::kDHead / 16;

 public:
  __device__ explicit ScoreWarpgroup(const BackwardKernelArgs& args)
      : ScoreChange<Config>(args), dropping_(args), steps_(Smem::mail().read(Word::kSteps)) {
    dropping_.begin_tile(Smem::mail());
    this->begin_heads(Smem::mail());
    block_ = Smem::mail().read(Word::kFirstBlock);
  }

  __device__ void run() {
    if (steps_ == 0) return;
    read_keys();
    wait_q(block_);
    issue_scores();                 // S^T = K Q^T
    Smem::v_pipeline().wait(0, 0);  // V has arrived
    if (Config::Lengths::kPerBatch) clear_keys_of(Smem::v());
    ptx::wgmma_wait<0>();  // S is complete
#pragma unroll 1
    for (; steps_ > 1; --steps_) {
      wait_d_o();
      issue_values();        // dP^T = V dO^T
      probabilities();       // S becomes P, which leaves
      wait_q(next_block());  // the next Q has arrived
      issue_scores();        // the next S
      ptx::wgmma_wait<1>();  // dP is complete, dO was read
      derivatives();         // dP becomes dS, which leaves
      if (next_block() <= block_) {
        dropping_.next_head();
        this->next_head(Smem::mail());
      }
      block_ = next_block();
      ptx::wgmma_wait<0>();  // S is complete
    }
    wait_d_o();
    issue_values();        // dP^T = V dO^T
    probabilities();       // S becomes P, which leaves
    ptx::wgmma_wait<0>();  // dP is complete, dO was read
    derivatives();         // dP becomes dS, which leaves
  }

 private:
  // K as A operands; its buffer is then free for Q.
  __device__ void read_keys() {
    Smem::q_pipeline().wait(q_);  // the first item of the ring is K
    const Tile64 tile = Smem::q(q_.stage);
    if (Config::Lengths::kPerBatch) clear_keys_of(tile);
    const int row = warp_in_group() * kWarpRows + lane_id() % 16;
#pragma unroll
    for (int d = 0; d < kDimSteps; ++d)
      ptx::ldmatrix_x4(k_[d], tile.chunk(row, 2 * d + lane_id() / 16));
    ptx::fence_proxy_async();  // these reads come before the copy engine's next writes
    __syncwarp();              // all lanes have read
    Smem::q_pipeline().release(q_);
    q_.advance();
  }
  static __device__ void clear_keys_of(Tile64 tile) {
    clear_from(tile, Smem::mail().read(Word::kKLen) - Smem::mail().read(Word::kKeyFirst));
  }
  static __device__ void clear_queries_of(Tile64 tile, int block) {
    clear_from(tile, Smem::mail().read(Word::kQLen) - block * Config::kBR);
  }
  static __device__ void clear_from(Tile64 tile, int rows) {
    if (rows >= kPanelRows) return;
    clear_rows(tile, rows, kPanelRows, threadIdx.x % kWarpgroupSize, kWarpgroupSize);
    sync_warpgroup(0);  // all four warps have stored their zeros
  }

  // The other warpgroups read Q and dO after this one has handed P and dS over.
  __device__ void wait_q(int block) const {
    Smem::q_pipeline().wait(q_);  // Q has arrived
    if (Config::Lengths::kPerBatch) clear_queries_of(Smem::q(q_.stage), block);
  }
  __device__ void wait_d_o() const {
    Smem::d_o_pipeline().wait(d_o_);  // dO has arrived
    if (Config::Lengths::kPerBatch) clear_queries_of(Smem::d_o(d_o_.stage), block_);
  }

  __device__ void issue_scores() {
    using Wgmma = ptx::WgmmaFromRegistersByRows<typename Config::DType, Config::kBR>;
    const auto q = Smem::q(0).row_operand().after(q_.stage);
    ptx::wgmma_fence();  // wgmma may now touch these registers
    Wgmma::start(s_, k_[0], q.step(0));
#pragma unroll
    for (int d = 1; d < kDimSteps; ++d) Wgmma::run(s_, k_[d], q.step(d));
    ptx::wgmma_commit();
  }
  __device__ void issue_values() {
    using Wgmma = ptx::WgmmaBothShared<typename Config::DType, Config::kBR, false, false>;
    const auto v = Smem::v().row_operand();
    const auto d_o = Smem::d_o(0).row_operand().after(d_o_.stage);
    ptx::wgmma_fence();  // wgmma may now touch these registers
    Wgmma::start(dp_, v.step(0), d_o.step(0));
#pragma unroll
    for (int d = 1; d < kDimSteps; ++d) Wgmma::run(dp_, v.step(d), d_o.step(d));
    ptx::wgmma_commit();
  }

  __device__ void probabilities() {
    dropping_.draw(Smem::mail().read(Word::kKeyFirst) + warp_in_group() * kWarpRows,
                   block_ * Config::kBR);
    this->exponentials(s_, Smem::mail(), warp_in_group() * kWarpRows, block_ * Config::kBR,
                       Smem::lse(q_.stage));
    q_.advance();
    if (hides(Smem::mail(), block_))
      this->hide(s_, Smem::mail(), warp_in_group() * kWarpRows, block_ * Config::kBR);
    Math::convert_probabilities(pairs_, s_);
    dropping_.drop(pairs_);
    kept_.keep(s_);
    kept_.keep(pairs_);
    hand_over(dropping_.weights(pairs_), Smem::p_pipeline());
  }
  __device__ void derivatives() {
    __syncwarp();  // all lanes have read
    Smem::d_o_pipeline().release(d_o_);
    d_o_.advance();
    const u32 delta = Smem::delta(delta_.stage);
    dropping_.drop_gradients(dp_);
    Derivative::template run<Math>(dp_, kept_, Config::Dropout::scale(this->args_),
                                   [=](int j) { return stats_of_lane(delta, j); });
    this->multiply_slopes(dp_, Smem::mail(), warp_in_group() * kWarpRows, block_ * Config::kBR,
                          hides(Smem::mail(), block_));
    delta_.advance();
    Derivative::template convert<Math>(pairs_, dp_);
    hand_over(pairs_, Smem::ds_pipeline());
    handed_.advance();
  }
  __device__ void hand_over(const Pairs& pairs, typename Smem::ScorePipeline to) {
    const Panel panel = to.tile(handed_.stage);
    to.acquire(handed_);  // what was there before was read
    write_key_rows(pairs, panel, 0);
    __syncwarp();  // all lanes have written
    to.commit(handed_.stage);
  }

  __device__ int next_block() const {
    const bool more = block_ + 1 < Smem::mail().read(Word::kEndBlock);
    return more ? block_ + 1 : Smem::mail().read(Word::kFirstBlock);  // of the next head
  }

  typename Config::Dropping::template Of<Config> dropping_;
  int steps_, block_;
  Ring<Smem::kQStages> q_;
  Ring<Smem::kStages> d_o_, handed_;
  Ring<Smem::kDeltas> delta_;
  u32 k_[kDimSteps][4];
  Scores s_, dp_;
  Pairs pairs_;
  typename Derivative::template Kept<Math> kept_;
};

}  // namespace fa::sm90::backward
