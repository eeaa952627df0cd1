// SPDX-License-Identifier: Apache-2.0
// The verbs of consumers of wide heads about K and V. The schedule calls them, and those of the exchange, in
// order.
#pragma once
#include <fa/sm90/split_v/consumer.cuh>
#include <fa/sm90/split_v/products.cuh>
#include <fa/sm90/wide/schedule.cuh>
#include <fa/sm90/wide/shared_memory.cuh>

namespace fa::sm90::wide {

// The products of a warpgroup and its registers.
template <class Config>
using ValueProducts =
    split_v::ValueProducts<Config, typename Tiles<Config>::HalfTile, typename Tiles<Config>::PTile>;

template <class Config>
struct Products : ValueProducts<Config> {
  using Base = ValueProducts<Config>;
  using typename Base::Scores;
  using QOperand = typename Tiles<Config>::QTile::RowOperand;
  using KOperand = typename Tiles<Config>::KTile::RowOperand;

  // S = Q K^T, asynchronously, part by part of the columns. `wait(part)` waits for a part of K;
  // `release(part)` is called when it was read, but for the last part.
  template <class Wait, class Release>
  static __device__ void issue_scores(Scores& s, QOperand q, KOperand k, Wait wait,
                                      Release release) {
    constexpr int kPartSteps = Tiles<Config>::kPartColumns / 16;
#pragma unroll
    for (int part = 0; part < Tiles<Config>::kColumnParts; ++part) {
      wait(part);
      ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
      for (int d = part * kPartSteps; d < min((part + 1) * kPartSteps, Config::kDHead / 16); ++d)
        ptx::WgmmaFromShared<typename Config::DType, Config::kBC>::run(s, q.step(d), k.step(d),
                                                                       d != 0);
      ptx::wgmma_commit();
      if (part == 0) continue;
      Base::template wait_products<1>();  // the part before was read
      release(part - 1);
    }
  }
};

template <class Config>
class Consumer;
template <class Config>
using Exchanging =
    split_v::Consumer<Consumer<Config>, Config, Products<Config>, SharedMemory<Config>>;

template <class Config_>
class Consumer : public Exchanging<Config_> {
 public:
  using Config = Config_;
  using Base = Exchanging<Config>;
  using Math = Products<Config>;
  using typename Math::KOperand, typename Math::POperand, typename Math::QOperand;
  using typename Math::Scores, typename Math::VOperand;

  __device__ Consumer(const SharedMemory<Config>& smem, const ForwardKernelArgs& args, int half)
      : Base(smem, args, half),
        q_operand_(smem.q().row_operand()),
        k_operand_(smem.k().row_operand()),
        v_operand_(smem.v(half).column_operand()),
        their_p_(smem.p(1 - half).row_operand()) {}

  __device__ void run_blocks() { Schedule::run(*this); }

  __device__ VOperand v() const { return v_operand_; }
  __device__ POperand their_p() const { return their_p_; }

  // S = Q K^T of this warpgroup's block, as K arrives. `ring` is at that block.
  __device__ void issue_scores(Scores& s, Ring<kStages> ring) {
    Math::issue_scores(
        s, q_operand_, k_operand_,
        [this, ring](int part) {
          smem_.k_pipeline().wait(half_, ring.parity, part);  // these columns have arrived
        },
        [this](int part) { smem_.k_pipeline().release(half_, part); });
  }
  // This warp will not read K again, of which only the last part was not released.
  __device__ void release_keys() {
    smem_.k_pipeline().release(half_, Tiles<Config>::kColumnParts - 1);
  }

  // Waits for this warpgroup's half of V. Both warpgroups visit all blocks, so its parity alternates.
  __device__ void wait_values() {
    smem_.v_pipeline().wait(half_, ring_.stage);
    Base::clear_tail(smem_.v(half_));
  }
  // This warp will not read V again.
  __device__ void release_values() { smem_.v_pipeline().release(half_); }

 private:
  using Base::smem_, Base::half_, Base::ring_;

  const QOperand q_operand_;
  const KOperand k_operand_;
  const VOperand v_operand_;
  const POperand their_p_;
};

}  // namespace fa::sm90::wide
