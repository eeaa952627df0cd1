// SPDX-License-Identifier: Apache-2.0
// The products of the backward pass and their registers. A key warpgroup has the rows of its keys: S^T
// and dP^T with a column for each query, dK and dV with those of the head. All are asynchronous.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/backward_args.cuh>
#include <fa/dtype.cuh>
#include <fa/ptx/math.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

// dK or dV of 16 keys, or nothing if nobody wants it.
template <class Config, bool Wanted>
struct GradientOf {
  using Type = Accumulator<kWarpRows, Config::kDHead>;
};
struct NoGradient {
  __device__ void zero() {}
};
template <class Config>
struct GradientOf<Config, false> {
  using Type = NoGradient;
};

template <class Config>
struct Products {
  using DType = typename Config::DType;
  using KeyTile = typename Shape<Config>::KeyTile;
  using QueryTile = typename Shape<Config>::QueryTile;
  using Scores = Accumulator<kWarpRows, Config::kBR>;
  using Gradient = Accumulator<kWarpRows, Config::kDHead>;
  struct Pairs {  // P^T or dS^T in 16 bits, as the A operand: 16 queries in four registers
    u32 step[Config::kBR / 16][4];
  };
  using Fragments = KeyFragments<Config>;

  // S^T = K Q^T, or dP^T = V dO^T.
  static __device__ void issue_scores(Scores& s, typename KeyTile::RowOperand keys,
                                      typename QueryTile::RowOperand queries) {
    using Wgmma = ptx::WgmmaBothShared<DType, Config::kBR, false, false>;
    ptx::wgmma_fence();  // wgmma may now touch these registers
    Wgmma::start(s, keys.step(0), queries.step(0));
#pragma unroll
    for (int d = 1; d < Config::kDHead / 16; ++d) Wgmma::run(s, keys.step(d), queries.step(d));
    ptx::wgmma_commit();
  }

  // The same with K in registers.
  static __device__ void issue_scores(Scores& s, const Fragments& keys,
                                      typename QueryTile::RowOperand queries) {
    using Wgmma = ptx::WgmmaFromRegistersByRows<DType, Config::kBR>;
    ptx::wgmma_fence();  // wgmma may now touch these registers
    Wgmma::start(s, keys.step[0], queries.step(0));
#pragma unroll
    for (int d = 1; d < Config::kDHead / 16; ++d) Wgmma::run(s, keys.step[d], queries.step(d));
    ptx::wgmma_commit();
  }

  // dV += P^T dO, or dK += dS^T Q.
  static __device__ void issue_accumulate(Gradient& gradient, const Pairs& p,
                                          typename QueryTile::ColumnOperand queries) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
    for (int n = 0; n < Config::kBR / 16; ++n)
      ptx::WgmmaFromRegisters<DType, Config::kDHead>::run(gradient, p.step[n], queries.step(n));
    ptx::wgmma_commit();
  }

  // A product that is left out. The schedule waits for the one before it next, if there is one.
  static __device__ void issue_accumulate(NoGradient&, const Pairs&,
                                          typename QueryTile::ColumnOperand) {
    ptx::wgmma_wait<0>();
  }

  // Waits until all but the latest `Pending` products have read their operands and stored their results.
  template <int Pending>
  static __device__ void wait_products() {
    ptx::wgmma_wait<Pending>();
  }

  static __device__ void convert(Pairs& p, const Scores& s) {
#pragma unroll
    for (int n = 0; n < Config::kBR / 16; ++n) pack_operand<DType>(p.step[n], s.v[0], n);
  }
  // P, which the rounding of a large log-sum-exp may have made more than 1.
  static __device__ void convert_probabilities(Pairs& p, const Scores& s) {
    convert(p, s);
#pragma unroll
    for (int n = 0; n < Config::kBR / 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) p.step[n][e] = DType::at_most_one(p.step[n][e]);
  }
};

// The slopes of a warpgroup's scores, a base class: it takes no room if there is nothing to keep.
template <class Config>
using Slopes = typename Config::Slopes::template Kept<Products<Config>>;

// From S to P: exponentials, and zeros where a query does not see a key. Rows are keys, columns queries.

// The statistics of a lane's two queries of fragment j.
__device__ inline ptx::FloatPair stats_of_lane(u32 stats, int j) {
  return ptx::ld_shared_8(stats + (8 * j + 2 * (lane_id() % 4)) * sizeof(float));
}

// S becomes P = exp2(scale S - lse - more).
template <class Scores, class More>
__device__ void exponentials_of(Scores& s, float score_scale, u32 lse, More more) {
  const float scale = score_scale * kLog2e;
#pragma unroll
  for (int j = 0; j < Scores::kColFragments; ++j) {
    const ptx::FloatPair offset = stats_of_lane(lse, j);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      s.v[0][j][e] = ptx::exp2(fmaf(s.v[0][j][e], scale, -more(e % 2 ? offset.y : offset.x, j, e)));
  }
}

// P of a warp's 16 keys, from `warp_key` of the tile on, and the queries from `query` on. Queries after the end
// have an infinite log-sum-exp.
template <bool KeysAfterEnd, class Mask, class Scores>
__device__ void hide(Scores& p, const Mask& mask, Mailbox mail, int warp_key, int first_query) {
  attn::Sequence sequence = {};
  sequence.q_len = mail.read(Word::kQLen);
  sequence.k_len = mail.read(Word::kKLen);
  const int first_key = mail.read(Word::kKeyFirst) + warp_key + lane_id() / 4;
  const int query = first_query + 2 * (lane_id() % 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int key = first_key + 8 * h;
    const int first = mask.first_query(key, sequence) - query;
    const int end = (key < sequence.k_len ? mask.end_query(key, sequence) : 0) - query;
#pragma unroll
    for (int j = 0; j < Scores::kColFragments; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (8 * j + e < first || (KeysAfterEnd && 8 * j + e >= end)) p.v[0][j][2 * h + e] = 0.f;
  }
}

// Whether some key is not seen by all queries of a block.
__device__ inline bool hides(Mailbox mail, int block) {
  return block < mail.read_alone(Word::kOpenFirst) || block >= mail.read_alone(Word::kOpenEnd);
}

// What happens to S and P of a warpgroup besides exponentials: the slots Score and Function change S, the slots
// Mask and Function hide P, and dS is multiplied by the slopes of the changed scores. A base class.
template <class Config>
class ScoreChange : Slopes<Config> {
  using Score = typename Config::Score;
  using Function = typename Config::Function;
  using Scores = typename Products<Config>::Scores;
  static constexpr bool kAsks = Function::kScores || Function::kMasks;

 protected:
  __device__ explicit ScoreChange(const BackwardKernelArgs& args) : args_(args) {}

  __device__ void begin_heads(Mailbox mail) {
    if constexpr (kAsks) {
      head_ = mail.read(Word::kHead);
      function_.begin(args_, mail.read(Word::kBatch), head_);
    }
  }
  __device__ void next_head(Mailbox mail) {
    if constexpr (kAsks) function_.begin(args_, mail.read(Word::kBatch), ++head_);
  }

  // S of the keys from `warp_key` of the tile on and the queries from `query` on becomes P = exp2(scale S - lse).
  __device__ void exponentials(Scores& s, Mailbox mail, int warp_key, int query, u32 lse) {
    const float scale = Score::scale(args_);
    Score::change(s, args_);
    bias_.wait();
    if constexpr (Function::kGathers)
      function_.keep(kept_, s, scale, Function::of(args_).program, place(mail, warp_key, query));
    if constexpr (Function::kSlopes) {
      Scores slopes;
      function_.slopes(slopes, s, scale, args_, bias_.at(place(mail, warp_key, query), warp_key));
      this->keep_slopes(
          [&](int j, int e) { return slopes.v[0][j][e] * Score::slope(s.v[0][j][e]); });
    } else {
      this->keep_slopes([&](int j, int e) { return Score::slope(s.v[0][j][e]); });
    }
    if constexpr (Function::kTilts) {
      const auto tilted = function_.tilted(args_, place(mail, warp_key, query));
      return exponentials_of(s, scale, lse,
                             [&](float lse, int j, int e) { return lse + tilted(j, e); });
    }
    if constexpr (Function::kScores)
      function_.change(s, scale, args_, bias_.at(place(mail, warp_key, query), warp_key));
    bias_.release();
    exponentials_of(s, attn::score_scale<Config>(args_), lse,
                    [](float lse, int /*j*/, int /*e*/) { return lse; });
  }

  // P or dS becomes zero where a query does not see the key.
  template <bool KeysAfterEnd = true>
  __device__ void hide(Scores& p, Mailbox mail, int warp_key, int query) const {
    backward::hide<KeysAfterEnd>(p, typename Config::Mask(args_), mail, warp_key, query);
    if constexpr (Function::kMasks) function_.hide(p, 0.f, args_, place(mail, warp_key, query));
  }

  // dS is added to the gradients of captured tensors and gets its slopes, which may be anything where it is hidden.
  __device__ void multiply_slopes(Scores& ds, Mailbox mail, int warp_key, int query, bool hides) {
    if constexpr (Function::kGathers)
      function_.gather(ds, kept_, Function::of(args_).program, place(mail, warp_key, query),
                       sequence(mail));
    Slopes<Config>::multiply_slopes(ds);
    if (Function::kSlopes && hides) hide(ds, mail, warp_key, query);
  }

  const BackwardKernelArgs& args_;

 private:
  static __device__ attn::Sequence sequence(Mailbox mail) {
    attn::Sequence sequence = {};
    sequence.q_len = mail.read(Word::kQLen);
    sequence.k_len = mail.read(Word::kKLen);
    return sequence;
  }
  __device__ attn::Place place(Mailbox mail, int warp_key, int query) const {
    const attn::Sequence own = sequence(mail);
    return {mail.read(Word::kBatch), head_, query, mail.read(Word::kKeyFirst) + warp_key,
            Function::ahead(args_, own)};
  }

  int head_;
  typename Function::OfKeys function_;
  typename Function::OfKeys::template Kept<Scores> kept_;
  typename Config::Bias::template Of<Config> bias_;
};

}  // namespace fa::sm90::backward
