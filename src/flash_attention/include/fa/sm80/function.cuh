// SPDX-License-Identifier: Apache-2.0
// A user's score and mask functions at the scores of a warp, which has 16 rows or several times as many.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/core.cuh>

namespace fa::sm80 {

// 16 rows of an accumulator.
template <int Cols>
struct RowFragment {
  static constexpr int kColFragments = Cols / 8;
  float (*v)[kColFragments][4];
};

// Four scores of a lane after the score function, and their derivatives by those before it.
struct Changed {
  Accumulator<16, 8> scores, slopes;

  __device__ float s(int e) const { return scores.v[0][0][e]; }
  __device__ float slope(int e) const { return slopes.v[0][0][e]; }
  __device__ void hide(int e) {
    scores.v[0][0][e] = -attn::kInfinity;
    slopes.v[0][0][e] = 0.f;
  }
};

// The rows are queries or keys. `at` is where the first of them is.
template <class Config, attn::RowsOf Side, int Rows>
class WarpFunction {
  using Function = typename Config::Function;
  static_assert(attn::FunctionSlot<Function>, "Function: kScores, kMasks, kSlopes, kListed");
  static constexpr bool kOfQueries = Side == attn::RowsOf::kQueries;

 public:
  // Before the first scores: what is known of queries.
  template <class Args>
  __device__ void begin(const Args& args, const attn::Place& at) {
    if constexpr (kOfQueries)
#pragma unroll
      for (int i = 0; i < Rows / 16; ++i) of_[i].begin(args, moved(at, i));
  }
  // Before the scores of a block, whose head may be another one: what keys know of it.
  template <class Args>
  __device__ void begin_block(const Args& args, const attn::Place& at) {
    if constexpr (!kOfQueries)
#pragma unroll
      for (int i = 0; i < Rows / 16; ++i) of_[i].begin(args, at.batch, at.head);
  }

  // Scores become those of the score function.
  template <int Cols, class Args>
  __device__ void change(Accumulator<Rows, Cols>& s, const Args& args,
                         const attn::Place& at) const {
    if constexpr (Function::kScores)
#pragma unroll
      for (int i = 0; i < Rows / 16; ++i) {
        RowFragment<Cols> rows = {s.v + i};
        of_[i].change(rows, Config::Score::scale(args), args, moved(at, i));
      }
  }

  // After the last scores: what the score function left out is added to the largest scores.
  template <class Args>
  __device__ void complete(attn::RowStats<Rows>& stats, const Args& args,
                           const attn::Place& at) const {
    struct RowMax {
      float& max;
    };
    struct RowMaxima {
      RowMax row[2];
    };
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i) {
      RowMaxima maxima = {{{stats.max[i][0]}, {stats.max[i][1]}}};
      of_[i].complete(maxima, args, moved(at, i));
    }
  }

  // Fragment (i, j) of S as the score function changes it. Hidden scores stay -inf and have no slope, whatever the
  // function makes of them, and so do those of queries without keys, whose log-sum-exp is +inf.
  template <int Cols, class Lse, class Args>
  __device__ Changed changed(const Accumulator<Rows, Cols>& s, int i, int j, const Lse& lse,
                             const Args& args, const attn::Place& at) const {
    Changed changed;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      changed.scores.v[0][0][e] = s.v[i][j][e];
      changed.slopes.v[0][0][e] = 1.f;
    }
    if constexpr (Function::kScores) {
      of_[i].change_with_slopes(changed.scores, changed.slopes, Config::Score::scale(args), args,
                                moved(at, i, j));
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (s.v[i][j][e] == -attn::kInfinity || lse.of(i, e) == attn::kInfinity) changed.hide(e);
    }
    return changed;
  }

  // Scores that the mask function does not show become -inf.
  template <int Cols, class Args>
  __device__ void hide(Accumulator<Rows, Cols>& s, const Args& args, const attn::Place& at) const {
    if constexpr (Function::kMasks)
#pragma unroll
      for (int i = 0; i < Rows / 16; ++i) {
        RowFragment<Cols> rows = {s.v + i};
        of_[i].hide(rows, -attn::kInfinity, args, moved(at, i));
      }
  }

 private:
  static __device__ attn::Place moved(attn::Place at, int i, int j = 0) {
    at.query += kOfQueries ? 16 * i : 8 * j;
    at.key += kOfQueries ? 8 * j : 16 * i;
    return at;
  }

  template <attn::RowsOf Of, class F>
  struct Choose {
    using Type = typename F::template OfQueries<attn::rows::OneHead>;
  };
  template <class F>
  struct Choose<attn::RowsOf::kKeys, F> {
    using Type = typename F::OfKeys;
  };

  typename Choose<Side, Function>::Type of_[Rows / 16];
};

}  // namespace fa::sm80
