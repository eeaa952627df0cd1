// SPDX-License-Identifier: Apache-2.0
// The derivatives of changed scores by the scaled ones, in 16-bit pairs: they are computed with P, while
// the changed scores are there, and kept until dS needs them.
#pragma once
#include <fa/core.cuh>

namespace fa::sm90::backward::slopes {

struct Pairs {
  template <class Math, class Score>
  class Kept {
    using DType = typename Math::DType;
    using Scores = typename Math::Scores;

   public:
    __device__ void keep_slopes(const Scores& changed) {
#pragma unroll
      for (int j = 0; j < Scores::kColFragments; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          pairs_[j][h] = DType::pack(Score::slope(changed.v[0][j][2 * h]),
                                     Score::slope(changed.v[0][j][2 * h + 1]));
    }
    __device__ void multiply_slopes(Scores& ds) const {
#pragma unroll
      for (int j = 0; j < Scores::kColFragments; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          ds.v[0][j][2 * h] *= DType::low(pairs_[j][h]);
          ds.v[0][j][2 * h + 1] *= DType::high(pairs_[j][h]);
        }
    }

   private:
    u32 pairs_[Scores::kColFragments][2];
  };
};

}  // namespace fa::sm90::backward::slopes
