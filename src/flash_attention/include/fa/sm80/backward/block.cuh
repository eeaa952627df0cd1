// SPDX-License-Identifier: Apache-2.0
// One CTA computes gradients of the rows that it owns, which are keys or queries (Config::OuterLoop). It
// loops over blocks of the others. Block holds the state and offers the verbs; Config binds the slots;
// Config::Schedule says in which order the verbs run.
//
//   own keys:    S = K Q^T,  dP = V dO^T,  dV += P dO,  dK += dS Q,  and dQ += dS^T K by additions
//   own queries: S = Q K^T,  dP = dO V^T,  dQ += dS K
//
// The two operands of S are called own_s and visited_s, those of dP own_dp and visited_dp. Both sums have
// the rows that the CTA owns: p_sum += P visited_dp, ds_sum += dS visited_s.
//
// Warps are a grid: kColumnWarps share the columns of S and of the sums, the others the rows.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/attn/softmax.cuh>
#include <fa/backward_args.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm80/backward/dq.cuh>
#include <fa/sm80/backward/product.cuh>
#include <fa/sm80/function.cuh>
#include <fa/sm80/load.cuh>
#include <fa/sm80/tile.cuh>

namespace fa::sm80::backward {

template <class Config_>
class Block {
 public:
  using Config = Config_;
  using DType = typename Config::DType;
  static constexpr int kThreads = Config::kNWarps * kWarpSize;
  static constexpr int kColumnWarps = Config::kColumnWarps;
  static constexpr int kWarpRows = Config::kOwnRows * kColumnWarps / Config::kNWarps;
  static constexpr int kWarpVisited = Config::kVisitedRows / kColumnWarps;
  static constexpr int kWarpDims = Config::kDHead / kColumnWarps;
  using OwnTile = Tile<Config, Config::kOwnRows>;
  using VisitedTile = Tile<Config, Config::kVisitedRows>;
  using WeightTile = Tile<Config, Config::kOwnRows, Config::kVisitedRows>;  // P or dS
  using Scope = typename Config::OuterLoop::template Scope<Config>;
  using Place = typename Scope::Place;
  template <class AnyTile>
  using Cursor = typename Config::Address::template Cursor<AnyTile>;

  static constexpr int kStageBytes = 2 * VisitedTile::kBytes + Scope::kStageStatBytes;
  static constexpr int kStoredWeights =
      Config::Operands::kStoresP ? Config::kSumsP + Config::kNeedsDs : Config::kAddsDq;
  static_assert(Config::kSmemBytes == 2 * OwnTile::kBytes + Config::kStages * kStageBytes +
                                          kStoredWeights * WeightTile::kBytes,
                "the host gives a CTA as much shared memory as its tiles take");

  __device__ Block(const BackwardKernelArgs& args, u32 smem)
      : scope_(args),
        own_s_(smem),
        own_dp_(own_s_ + OwnTile::kBytes),
        ds_tile_(own_dp_ + OwnTile::kBytes),
        p_tile_(ds_tile_ + Config::kNeedsDs * WeightTile::kBytes),
        stages_(ds_tile_ + kStoredWeights * WeightTile::kBytes) {
    p_sum_.zero();
    ds_sum_.zero();
  }

  __device__ bool empty() const { return scope_.empty(); }
  __device__ bool visits_any() const { return scope_.visits_any(); }
  __device__ bool visits(const Place& place) const { return scope_.visits(place); }
  __device__ Place first() const { return scope_.first(); }
  __device__ Place after(const Place& place) { return scope_.after(place); }

  // global -> shared

  __device__ void load_own() {
    load_tile<Config, OwnTile>(own_s_, scope_.own_s(), first_row());
    if constexpr (Config::kNeedsDs)
      load_tile<Config, OwnTile>(own_dp_, scope_.own_dp(), first_row());
    scope_.hold_stats(first_row() + warp_row());
    function_.begin(scope_.args(), at(first()));
  }
  __device__ void load_visited(int stage, const Place& place) {
    load_tile<Config, VisitedTile>(visited_s(stage), scope_.visited_s(place), place.row);
    load_tile<Config, VisitedTile>(visited_dp(stage), scope_.visited_dp(place), place.row);
    scope_.load_stats(stats(stage), place);
  }
  __device__ void commit() { Config::Copy::commit(); }
  template <int Pending>
  __device__ void wait() {
    Config::Copy::template wait<Pending>();
  }

  // shared -> registers -> tensor cores

  __device__ void products(int stage, const Place& place) {
    Config::Operands::run(*this, stage, place);
  }

  __device__ void scores(int stage, const Place& place) {  // S, then the score variant and the mask
    multiply_own(s_, own_s_, visited_s(stage));
    Config::Score::change(s_, scope_.args());
    scope_.hide(s_, first_row() + warp_row(), place, warp_visited());
    function_.begin_block(scope_.args(), at(place));
    if (scope_.function_hides(place)) function_.hide(s_, scope_.args(), at(place));
    dropout_.begin_head(scope_.head_of_all(place));
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i)
      dropout_.draw(dropped_[i], first_row() + warp_row() + 16 * i, place.row + warp_visited(),
                    scope_.args());
  }
  __device__ void d_probabilities(int stage) {  // dP
    if constexpr (Config::kNeedsDs) multiply_own(dp_, own_dp_, visited_dp(stage));
  }

  // P = exp2(c S - lse), at most 1 whatever rounding did to large scores, and dS = P (dP - delta), both
  // rounded to 16 bits. Dropout applies to dP, and to the P that is rounded.
  __device__ void weigh(int stage, const Place& place) {
    using Exponential = attn::exponential::FusedExp2;
    const float factor = Exponential::factor(attn::score_scale<Config>(scope_.args()));
    const float of_kept = Config::Dropout::scale(scope_.args());
#pragma unroll
    for (int j = 0; j < kWarpVisited / 8; ++j) {
      const auto lse = scope_.lse(stats(stage), warp_visited() + 8 * j);
      const auto delta = scope_.delta(stats(stage), warp_visited() + 8 * j);
#pragma unroll
      for (int i = 0; i < kWarpRows / 16; ++i) {
        float p[4], ds[4];
        const auto changed = function_.changed(s_, i, j, lse, scope_.args(), at(place));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          p[e] = ptx::exp2(ptx::min_nan(fmaf(changed.s(e), factor, -lse.of(i, e)), 0.f));
          const auto dropped = [&](float x) {
            return dropped_[i].kept(x, j / 2, j % 2 * 2 + e / 2, e % 2) * of_kept;
          };
          if constexpr (Config::kNeedsDs)
            ds[e] = p[e] * (dropped(dp_.v[i][j][e]) - delta.of(i, e)) *
                    Config::Score::slope(s_.v[i][j][e]) * changed.slope(e);
          p[e] = dropped(p[e]);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          p_.pair[i][j][h] = DType::pack(p[2 * h], p[2 * h + 1]);
          if constexpr (Config::kNeedsDs) ds_.pair[i][j][h] = DType::pack(ds[2 * h], ds[2 * h + 1]);
        }
      }
    }
  }

  template <class ReadA>
  __device__ void add_p(int stage, ReadA read_a) {  // p_sum += P visited_dp
    if constexpr (Config::kSumsP) add_product(p_sum_, read_a, visited_dp(stage));
  }
  template <class ReadA>
  __device__ void add_ds(int stage, ReadA read_a) {  // ds_sum += dS visited_s
    if constexpr (Config::kSumsDs) add_product(ds_sum_, read_a, visited_s(stage));
  }

  // P and dS as left operands, from registers or from shared memory.
  __device__ void p_fragment(u32 (&a)[4], int i, int n) const { p_.fragment(a, i, n); }
  __device__ void ds_fragment(u32 (&a)[4], int i, int n) const { ds_.fragment(a, i, n); }
  __device__ void read_p(u32 (&a)[4], int i, int n) const { read_weights(a, p_tile_, i, n); }
  __device__ void read_ds(u32 (&a)[4], int i, int n) const { read_weights(a, ds_tile_, i, n); }

  __device__ void store_p() const {
    if constexpr (Config::kSumsP) p_.store(quad_cursor(p_tile_));
  }
  __device__ void store_ds() const {
    if constexpr (kStoresDs) ds_.store(quad_cursor(ds_tile_));
  }

  // The warps that share rows have stored their P and dS.
  __device__ void meet_rows() const {
    ptx::named_barrier_sync(1 + warp_id() / kColumnWarps, kColumnWarps * kWarpSize);
  }
  // Every warp has stored its dS, if the next product reads those of others.
  __device__ void meet() const {
    if constexpr (Config::kAddsDq) __syncthreads();
  }

  // registers -> global

  __device__ void add_dq(const Place& place) {
    if constexpr (Config::kAddsDq)
      backward::add_dq<Config, WeightTile, OwnTile>(ds_tile_, own_s_, scope_.dq_sums(place),
                                                    place.row);
  }

  __device__ void store() const {
    if constexpr (Config::kSumsDs)
      Config::Store::run(*this, own_s_, scope_.ds_sum(), ds_sum_, scope_.args().softmax_scale);
    if constexpr (Config::kSumsP) Config::Store::run(*this, own_dp_, scope_.p_sum(), p_sum_, 1.f);
  }

  // What a Store uses. A warp has every kColumnWarps-th tile of 16 columns of the sums.
  __device__ int first_row() const { return scope_.first_row(); }
  static __device__ int warp_row() { return warp_id() / kColumnWarps * kWarpRows; }
  static __device__ int sum_step(int j) { return 2 * kColumnWarps * (j / 2) + j % 2; }
  static __device__ int sum_chunk(int j) { return 2 * column_warp() + sum_step(j); }

 private:
  static constexpr bool kStoresDs =
      Config::kNeedsDs && (Config::Operands::kStoresP || Config::kAddsDq);

  static __device__ int column_warp() { return warp_id() % kColumnWarps; }
  static __device__ int warp_visited() { return column_warp() * kWarpVisited; }
  // Where the scores of a warp are, for a user's function.
  __device__ attn::Place at(const Place& place) const {
    return scope_.at(first_row() + warp_row(), place, warp_visited());
  }
  __device__ u32 visited_s(int stage) const { return stages_ + stage * kStageBytes; }
  __device__ u32 visited_dp(int stage) const { return visited_s(stage) + VisitedTile::kBytes; }
  __device__ u32 stats(int stage) const { return visited_dp(stage) + VisitedTile::kBytes; }

  // acc = own visited^T
  __device__ void multiply_own(Accumulator<kWarpRows, kWarpVisited>& acc, u32 own,
                               u32 visited) const {
    multiply_transposed<Config>(
        acc, Cursor<OwnTile>(own, warp_row() + lane_id() % 16, lane_id() / 16),
        Cursor<VisitedTile>(visited, warp_visited() + lane_id() % 8 + lane_id() / 16 * 8,
                            lane_id() / 8 % 2));
  }

  // sum += A visited, along the visited rows.
  template <class ReadA>
  __device__ void add_product(Accumulator<kWarpRows, kWarpDims>& sum, ReadA read_a,
                              u32 visited) const {
    const Cursor<VisitedTile> lane(visited, lane_id() % 16, 2 * column_warp() + lane_id() / 16);
    multiply<Config, Config::kVisitedRows / 16>(sum, read_a, [&](u32(&b)[4], int d, int n) {
      ptx::ldmatrix_x4_trans(b, lane.at(16 * n, 2 * kColumnWarps * d));
    });
  }

  static __device__ Cursor<WeightTile> quad_cursor(u32 tile) {
    return {tile, warp_row() + lane_id() / 4, warp_visited() / kChunkElements};
  }
  __device__ void read_weights(u32 (&a)[4], u32 tile, int i, int n) const {
    const Cursor<WeightTile> lane(tile, warp_row() + lane_id() % 16, lane_id() / 16);
    ptx::ldmatrix_x4(a, lane.at(16 * i, 2 * n));
  }

  Scope scope_;
  typename Config::Dropout dropout_;
  const u32 own_s_, own_dp_, ds_tile_, p_tile_, stages_;
  Accumulator<kWarpRows, kWarpVisited> s_, dp_;
  typename Config::Dropout::template Dropped<Scope::kRowsOf, kWarpVisited / 16>
      dropped_[kWarpRows / 16];
  Weights<kWarpRows, kWarpVisited> p_, ds_;
  Accumulator<kWarpRows, kWarpDims> p_sum_, ds_sum_;
  WarpFunction<Config, Scope::kRowsOf, kWarpRows> function_;
};

}  // namespace fa::sm80::backward
