// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup computes 64 rows of a tile, by verbs that the schedule calls in order. The tangent of O
// is accumulated without the part that the growth of the row sums takes away, which is known at the end.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/attn/rescale.cuh>
#include <fa/attn/row_end.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tangent/args.cuh>
#include <fa/sm90/tangent/products.cuh>
#include <fa/sm90/tangent/schedule.cuh>
#include <fa/sm90/tangent/shared_memory.cuh>
#include <fa/sm90/tile.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90::tangent {

template <class Config>
class Consumer : public Products<Config> {
  using Math = Products<Config>;
  using Exponential = typename Config::Exponential;
  using Mask = typename Config::Mask;
  using Score = typename Config::Score;
  using Range = attn::KeyRange<Mask, Config::kBC>;
  using Warp = WarpOutput<Config>;

 public:
  __device__ Consumer(const SharedMemory<Config>& smem, const TangentKernelArgs& args,
                      int warpgroup)
      : smem_(smem),
        args_(args),
        warpgroup_(warpgroup),
        mask_(args),
        factor_{Exponential::factor(Score::scale(args))},
        q_(smem.q_pipeline().tile(0).value().row_operand()),
        k_(smem.k_pipeline().tile(0).value().row_operand()),
        v_(smem.v_pipeline().tile(0).value().column_operand()) {}

  __device__ void run() {
    while (take_tile<Config>(smem_.mail(), args_, tile_, sequence_, tile_parity_)) {
      begin();
      Schedule::run(*this);
      pass_blocks(unseen_after_);
      store();
    }
  }

  __device__ bool has_block() const { return uniform(block_ >= first_block_); }
  __device__ void next_block() { --block_; }

  // Four warps arrive here before they issue products: the compiler keeps operands in uniform registers.
  __device__ void align() const { sync_warpgroup(warpgroup_); }

  __device__ void wait_keys() { smem_.k_pipeline().wait(k_ring_); }
  __device__ void wait_values() { smem_.v_pipeline().wait(v_ring_); }
  // This warp will not read the stage again.
  __device__ void release_keys() {
    smem_.k_pipeline().release(k_ring_);
    k_ring_.advance();
  }
  // Of the last block, this warp will not read Q again: the next one loads during the last products.
  __device__ void release_queries() {
    if (uniform(block_ <= first_block_)) smem_.q_pipeline().release(warpgroup_);
  }
  __device__ void release_values() {
    smem_.v_pipeline().release(v_ring_);
    v_ring_.advance();
  }

  __device__ void issue_scores() {
    Math::issue_scores(s_, value_of(q_, warpgroup_), value_of(k_, k_ring_.stage));
  }
  __device__ void issue_slopes() {
    Math::issue_slopes(ds_, value_of(q_, warpgroup_), tangent_of(q_, warpgroup_),
                       value_of(k_, k_ring_.stage), tangent_of(k_, k_ring_.stage));
  }
  __device__ void issue_weighted() {
    Math::issue_weighted(o_, d_o_, p_, value_of(v_, v_ring_.stage), tangent_of(v_, v_ring_.stage));
  }
  __device__ void issue_sloped() { Math::issue_sloped(d_o_, w_, value_of(v_, v_ring_.stage)); }

  // Applies the score variant to S, and its slopes to dS, which is waited for if they are not 1.
  __device__ void change() {
    if constexpr (!kSame<Score, attn::score::Plain>) {
      Score::change(s_, args_);
      Math::template wait_products<0>();  // dS is complete
#pragma unroll
      for (int j = 0; j < Config::kBC / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) ds_.v[0][j][e] *= Score::slope(s_.v[0][j][e]);
    }
  }
  __device__ void mask() {
    if (uniform(range_.hides(block_)))
      attn::hide<typename Config::Rows>(s_, mask_, warp_row(), block_ * Config::kBC, sequence_);
  }
  // S becomes P, relative to the maxima, to which O, its tangent and the sums are rescaled.
  __device__ void softmax() {
    Config::Rescale::template run<Exponential>(attn::Masked{}, s_, stats_, factor_);
    if (stats_.grew) {
      attn::rescale_rows(o_, stats_);
      attn::rescale_rows(d_o_, stats_);
#pragma unroll
      for (int h = 0; h < 2; ++h) growth_[h] *= stats_.shrink[0][h];
    }
    Math::convert(p_, s_);
  }
  // dS becomes W = P dS, element by element, and its values are added to the tangents of the sums.
  __device__ void weigh_slopes() {
#pragma unroll
    for (int j = 0; j < Config::kBC / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& slope = ds_.v[0][j][e];
        slope *= s_.v[0][j][e] * args_.softmax_scale;
        growth_[e / 2] += slope;
      }
    Math::convert(w_, ds_);
  }

 private:
  __device__ int tile_row() const {
    return tile_.q_block * Shape<Config>::kBR + warpgroup_ * kWarpgroupRows;
  }
  __device__ int warp_row() const { return tile_row() + warp_in_group() * kWarpRows; }

  // Waits for Q, clears O and the statistics, and skips blocks that only other rows see.
  __device__ void begin() {
    const auto [whole_first, whole_end] = visited_blocks<Config>(tile_, sequence_, args_);
    range_ = Range(mask_, tile_row(), kWarpgroupRows, sequence_);
    const bool has_query = tile_row() < sequence_.q_len;
    const int end = has_query ? range_.end_block() : whole_first;
    first_block_ = has_query ? range_.first_block() : whole_first;
    unseen_after_ = first_block_ - whole_first;
    block_ = end - 1;
    stats_.reset();
    growth_[0] = growth_[1] = 0.f;
    o_.zero();
    d_o_.zero();
    smem_.q_pipeline().wait(warpgroup_, tile_parity_);  // Q and dQ have arrived
    tile_parity_ ^= 1;
    if (!has_block()) release_queries();
    __syncwarp();  // the compiler knows that the lanes are together: stages stay in uniform registers
    pass_blocks(whole_end - end);
  }

  __device__ void pass_blocks(int count) {
#pragma unroll 1
    for (int i = 0; uniform(i < count); ++i) {
      wait_keys();  // wait first, so that the release lands in this phase
      release_keys();
      wait_values();  // V and dV have arrived
      release_values();
    }
  }

  // The tangent of O / l is (dO - (r / l) O) / l, with the sum l, whose tangent is r.
  __device__ void store() {
    const Warp warp = {o_, args_, sequence_, tile_, tile_row()};
    const attn::RowEnds ends(stats_, Score::scale(args_));
    ends.normalise(o_);
    ends.normalise(d_o_);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      growth_[h] = attn::quad_sum(growth_[h]) * ends.row[h].inverse();
#pragma unroll
      for (int j = 0; j < Config::kDHead / 8; ++j)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) d_o_.v[0][j][e] -= growth_[h] * o_.v[0][j][e];
    }
    warp.store_lse(ends);
    store_lse_tangent(warp);
    store_rows(warp, args_.o);
    store_rows(Warp{d_o_, args_, sequence_, tile_, tile_row()}, args_.o_tangent);
  }
  __device__ void store_lse_tangent(const Warp& warp) const {
    if (!args_.lse_tangent) return;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (const int r = Warp::lane_row(h); lane_id() % 4 == 0 && warp.used(r))
        args_.lse_tangent[tile_.batch * args_.lse_batch_stride +
                          tile_.head * args_.lse_head_stride + warp.position(r)] = growth_[h];
  }
  __device__ void store_rows(const Warp& warp, void* to) const {
    warp.store_chunks([&](int r) {
      const i64 row = tile_.batch * args_.o_stride.batch + tile_.head * args_.o_stride.head +
                      warp.position(r) * args_.o_stride.seq;
      return static_cast<char*>(to) + row * kElementBytes;
    });
  }

  const SharedMemory<Config>& smem_;
  const TangentKernelArgs& args_;
  const int warpgroup_;
  const Mask mask_;
  attn::Factor factor_;
  const typename Math::QOperand q_;  // of the first warpgroup
  const typename Math::KOperand k_;  // of the first stage
  const typename Math::VOperand v_;
  Ring<Config::kStages> k_ring_, v_ring_;
  u32 tile_parity_ = 0;
  Tile tile_;
  attn::Sequence sequence_;
  Range range_;
  int block_, first_block_, unseen_after_;
  typename Math::Scores s_, ds_;
  typename Math::Weights p_, w_;
  typename Math::Output o_, d_o_;
  attn::RowStats<kWarpRows> stats_;
  float growth_[2];  // the tangent of the sum of a row
};

}  // namespace fa::sm90::tangent
