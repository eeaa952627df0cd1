// SPDX-License-Identifier: Apache-2.0
// The verbs of MLA consumers about K, whose columns are V's too, and which P is written over. Config's
// schedule calls them, and those of the exchange, in order.
#pragma once
#include <fa/ptx/memory.cuh>
#include <fa/sm90/mla/shared_memory.cuh>
#include <fa/sm90/split_v/consumer.cuh>
#include <fa/sm90/split_v/products.cuh>

namespace fa::sm90::mla {

// The products of a warpgroup and its registers. Each warp holds 16 rows of S and P, and of half of O's
// columns.
template <class Config>
struct Products : split_v::ValueProducts<Config, typename Tiles<Config>::HalfTile,
                                         typename Tiles<Config>::PTile> {
  using DType = typename Config::DType;
  using typename split_v::ValueProducts<Config, typename Tiles<Config>::HalfTile,
                                        typename Tiles<Config>::PTile>::Scores;
  using QOperand = typename Tiles<Config>::QTile::RowOperand;
  using KOperand = typename Tiles<Config>::KTile::RowOperand;

  // How far the next part of a tile's columns is, in a descriptor.
  template <class Tile>
  static constexpr int kHalfSpan = Tiles<Config>::HalfTile::kCount * Tile::kPanelBytes >> 4;

  // The rotary columns of Q, which may stay in registers.
  static constexpr int kRotarySteps = Tiles<Config>::kRotaryColumns / 16;
  struct RotaryQueries {
    u32 step[kRotarySteps][4];
  };
  // Reads those of a warp's rows, which start at `row` of the tile.
  static __device__ void read(RotaryQueries& q, typename Tiles<Config>::QTile tile, int row) {
    constexpr int kFirst = Config::kDV / kChunkElements;
#pragma unroll
    for (int d = 0; d < kRotarySteps; ++d)
      ptx::ldmatrix_x4(q.step[d],
                       tile.chunk(row + lane_id() % 16, kFirst + 2 * d + lane_id() / 16));
  }

  // S = Q K^T, asynchronously, part by part of the columns of K. `wait(part)` waits for one. The parts of
  // stage `half` come in the order in which they are loaded.
  template <class Wait>
  static __device__ void issue_scores(Scores& s, const RotaryQueries& rotary, QOperand q,
                                      KOperand k, int half, Wait wait) {
#pragma unroll
    for (int n = 0; n < kColumnParts; ++n) {
      const int part = nth_part(half, n);
      const int columns =
          n == kRotaryIndex ? Tiles<Config>::kRotaryColumns : Tiles<Config>::kHalfColumns;
      const QOperand q_part = {q.descriptor + part * (kHalfSpan<typename Tiles<Config>::QTile>)};
      const KOperand k_part = {k.descriptor + part * (kHalfSpan<typename Tiles<Config>::KTile>)};
      wait(part);
      ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
      for (int d = 0; d < columns / 16; ++d)
        if (Config::kRotaryInRegisters && n == kRotaryIndex)
          ptx::WgmmaFromRegistersByRows<DType, Config::kBC>::run(s, rotary.step[d % kRotarySteps],
                                                                 k_part.step(d));
        else
          ptx::WgmmaFromShared<DType, Config::kBC>::run(s, q_part.step(d), k_part.step(d),
                                                        n != 0 || d != 0);
    }
    ptx::wgmma_commit();
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
  using typename Math::Scores, typename Math::VOperand, typename Math::Weights;
  using VTile = typename Tiles<Config>::VTile;

  __device__ Consumer(const SharedMemory<Config>& smem, const ForwardKernelArgs& args, int half)
      : Base(smem, args, half),
        q_operand_(smem.q().row_operand()),
        k_operand_(smem.k(0).row_operand()),
        v_operand_(smem.v(0, half).column_operand()),
        p_operand_(smem.p(0).row_operand()) {}

  __device__ void run_blocks() {
    if (Config::kRotaryInRegisters) {
      Math::read(rotary_q_, smem_.q(), warp_in_group() * kWarpRows);
      __syncwarp();  // all lanes have read, before one of them releases Q
    }
    Config::Schedule::run(*this);
  }

  // operands of the products, in the stage of the block

  __device__ VOperand v() const { return {v_operand_.descriptor + stage_distance(ring_.stage)}; }
  __device__ POperand their_p() const {
    return {p_operand_.descriptor + stage_distance(ring_.stage)};
  }

  // a block of this warpgroup

  // S = Q K^T of this warpgroup's stage, as K arrives. `ring` is at the stage, for the block or the next.
  __device__ void issue_scores(Scores& s, Ring<kStages> ring) {
    Math::issue_scores(
        s, rotary_q_, q_operand_, k_operand_.after(half_), half_, [this, ring](int part) {
          smem_.k_pipeline().wait(half_, ring.parity, part);  // these columns have arrived
        });
  }
  // The tensor cores have computed the scores of this block.
  __device__ void announce_scores() { smem_.s_pipeline().commit(half_); }
  // Gives P and the maxima to the other warpgroup. P is written over the rotary columns.
  __device__ void write_weights(const Weights& p) {
    sync_warpgroup(half_);  // all four warps' products have read the rotary columns
    Base::clear_tail(VTile(smem_.k(half_).address));
    Base::write_weights(p);
  }
  // This warp will not read the block again, of which the other warpgroup reads P.
  __device__ void release_own() {
    smem_.k_pipeline().release(half_, half_);
    Base::next_block();
  }

  // a block of the other warpgroup

  // Waits until the tensor cores have computed the scores of the next block.
  __device__ void wait_their_scores() { smem_.s_pipeline().wait(Base::next_ring()); }
  // This warp will not read the block again.
  __device__ void release_theirs() {
    smem_.k_pipeline().release(ring_.stage, half_);
    smem_.k_pipeline().release(ring_.stage, kRotaryPart);
    Base::next_block();
  }

 private:
  using Base::smem_, Base::half_, Base::ring_;

  static __device__ u64 stage_distance(int stage) {
    return stage * (Tiles<Config>::KTile::kBytes >> 4);
  }

  const QOperand q_operand_;
  const KOperand k_operand_;  // of the first stage
  const VOperand v_operand_;
  const POperand p_operand_;
  typename Math::RotaryQueries rotary_q_;
};

}  // namespace fa::sm90::mla
