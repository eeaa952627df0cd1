// SPDX-License-Identifier: Apache-2.0
// The two products of a warpgroup and its registers, of which each warp holds 16 rows, and what happens to S
// before the softmax.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/attn/rescale.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/dtype.cuh>
#include <fa/forward_args.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/math.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

// The type of the operands of both products: that of O. If Q, K and V have 8 bits and are converted as they
// are, Fp16 holds them exactly, and converting to it is one instruction for two elements instead of four.
template <class Config>
struct OperandOf {
  using Type = typename Config::DType;
};
template <class Config>
  requires(Config::kConvertQueries > 0 || kScores8Bit<Config>) && (Config::Descale::kKeepsElements)
struct OperandOf<Config> {
  using Type = dtype::Fp16;
};

// The type of Q and K, and how many columns one product has.
template <class Config, bool Scores8Bit = kScores8Bit<Config>>
struct ScoreOperand {
  using Type = typename OperandOf<Config>::Type;
  static constexpr int kDepth = 16;
};
template <class Config>
struct ScoreOperand<Config, true> {
  using Type = ptx::E4m3;
  static constexpr int kDepth = 32;
};

template <class Config>
struct Products {
  using DType = typename OperandOf<Config>::Type;
  using QTile = typename Shape<Config>::QTile;
  using KTile = typename Shape<Config>::KTile;
  using QOperand = typename QTile::RowOperand;
  using KOperand = typename KTile::RowOperand;
  using VOperand = typename Shape<Config>::VTile::ColumnOperand;
  // Of Q and K. A step that is half beyond d_head reads zeros there, which TMA wrote.
  using ScoreType = typename ScoreOperand<Config>::Type;
  static constexpr int kDimSteps =
      (Config::kDHead + ScoreOperand<Config>::kDepth - 1) / ScoreOperand<Config>::kDepth;

  template <int Keys>
  using Scores = Accumulator<kWarpRows, Keys>;
  template <int Keys>
  struct Weights {  // P as the A operand: pairs of elements, 16 keys in four registers
    u32 step[Keys / 16][4];
    typename Config::Dropout::template Dropped<attn::RowsOf::kQueries, Keys / 16> dropped;
  };
  using Output = Accumulator<kWarpRows, Config::kDHead>;

  // S = Q K^T with the first `Keys` keys of the block, asynchronously.
  template <int Keys>
  static __device__ void issue_scores(Scores<Keys>& s, QOperand q, KOperand k) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
    for (int d = 0; d < kDimSteps; ++d)
      ptx::WgmmaFromShared<ScoreType, Keys>::run(s, q.step(d), k.step(d), d != 0);
    ptx::wgmma_commit();
  }

  // O += P V with the first `Keys` keys of the block, asynchronously.
  template <int Keys>
  static __device__ void issue_accumulate(Output& o, const Weights<Keys>& p, VOperand v) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
    for (int n = 0; n < Keys / 16; ++n)
      ptx::WgmmaFromRegisters<DType, Config::kDHead>::run(o, p.step[n], v.step(n));
    ptx::wgmma_commit();
  }

  // Waits until all but the latest `Pending` products have read their operands and stored their results.
  template <int Pending>
  static __device__ void wait_products() {
    ptx::wgmma_wait<Pending>();
  }

  template <int Keys>
  static __device__ void convert(Weights<Keys>& p, const Scores<Keys>& s) {
#pragma unroll
    for (int n = 0; n < Keys / 16; ++n) {
      pack_operand<DType>(p.step[n], s.v[0], n);
      p.dropped.clear(p.step[n], n);
    }
  }

  // Computes S again, by this warp alone: Q's 16 rows from `q_row` of its tile, all keys of the block.
  static __device__ void scores_again(Scores<Config::kBC>& s, QTile q_tile, int q_row,
                                      KTile k_tile) {
    static_assert(!kScores8Bit<Config>, "ldmatrix and mma read elements of 16 bits");
    s.zero();
#pragma unroll 1
    for (int d = 0; d < kDimSteps; ++d) {
      u32 q[4];
      ptx::ldmatrix_x4(q, q_tile.chunk(q_row + lane_id() % 16, 2 * d + lane_id() / 16));
      // The swizzle repeats every 8 rows: 16 rows on, only the row offset is another.
      const u32 keys = k_tile.chunk(lane_id() % 8 + lane_id() / 16 * 8, 2 * d + lane_id() / 8 % 2);
#pragma unroll
      for (int n = 0; n < Config::kBC / 16; ++n) {
        u32 k[4];
        ptx::ldmatrix_x4(k, keys + n * 2 * KTile::kGroupBytes);
        mma<DType>(s.v[0][2 * n], q, k[0], k[1]);
        mma<DType>(s.v[0][2 * n + 1], q, k[2], k[3]);
      }
    }
    ptx::fence_proxy_async();  // these reads come before the copy engine's next writes
    __syncwarp();              // of all lanes, for one of which the tiles are released
  }
};

// What a consumer does to the scores of its rows before the softmax: the score variant, a user's function and
// the mask.
template <class Config>
class ScoreChange : public KeyWalk<Config> {
  using Function = typename Config::Function;
  using Rows = typename Config::Rows;
  // A function that tilts scores does that to the offsets of their exponentials, where nobody sees the scores.
  static constexpr bool kTiltsOffsets = kStale<Config> && Function::kTilts;

 protected:
  __device__ ScoreChange(const ForwardKernelArgs& args, int warpgroup)
      : args_(args), warpgroup_(warpgroup), mask_(args) {}

  // The scores of a block become those that the softmax sees.
  template <class Block, class Scores>
  __device__ void change(Scores& s) const {
    Config::Score::change(s, descale_.scaled(args_));
    if (!kTiltsOffsets || Block::kHidden) function_.change(s, own_scale(), args_, place());
  }
  // Scores that a row does not see become -inf.
  template <class Scores>
  __device__ void hide(Scores& s) const {
    if (!this->is_shown_whole(sequence_))
      attn::hide<Rows>(s, mask_, warp_row(), this->key(), sequence_);
    function_.hide(s, -attn::kInfinity, args_, place());
  }
  // The offsets of an open block's exponentials.
  __device__ auto offsets() const {
    if constexpr (kTiltsOffsets)
      return function_.tilted(own_scale(), args_, place());
    else
      return attn::OffsetsOfRows{};
  }

  __device__ auto place() const {
    return bias_.at(
        {tile_.batch, tile_.head, warp_row(), this->key(), Function::ahead(args_, sequence_)});
  }
  __device__ int warp_row() const { return tile_row() + warp_in_group() * kWarpRows; }
  __device__ int tile_row() const {
    return tile_.q_block * Shape<Config>::kBR + warpgroup_ * Shape<Config>::kRows;
  }
  // The factor of the scores that the softmax sees.
  __device__ float scale() const { return attn::score_scale<Config>(descale_.scaled(args_)); }

  const ForwardKernelArgs& args_;
  const int warpgroup_;
  Tile tile_;
  attn::Sequence sequence_;
  typename Config::Descale::Factors descale_;
  typename Function::template OfQueries<Rows> function_;
  typename Config::Bias::template Of<Config> bias_;

 private:
  // The factor that a function's scores have already.
  __device__ float own_scale() const { return Config::Score::scale(descale_.scaled(args_)); }

  const typename Config::Mask mask_;
};

template <class T>
concept DescaleSlot = requires(typename T::Factors& factors, const ForwardKernelArgs& args) {
  { T::kPerTile } -> Same<const bool&>;
  factors.read(args, 0, 0);
  factors.scaled(args);
  { factors.of_values() } -> Same<float>;
};

}  // namespace fa::sm90

namespace fa::sm90::descale {

// K and V of 16 bits have no descale factors.
struct None {
  static constexpr bool kPerTile = false;

  struct Factors {
    __device__ void read(const ForwardKernelArgs&, int /*batch*/, int /*kv_head*/) {}
    __device__ const CallArgs& scaled(const CallArgs& call) const { return call; }
    __device__ float of_values() const { return 1.f; }
  };
};

}  // namespace fa::sm90::descale
