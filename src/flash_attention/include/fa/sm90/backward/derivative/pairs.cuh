// SPDX-License-Identifier: Apache-2.0
// dS = P (dP - delta) as a product of 16-bit pairs: half as many instructions, one more rounding.
#pragma once
#include <fa/sm90/backward/products.cuh>

namespace fa::sm90::backward::derivative {

struct Pairs {
  template <class Math>
  struct Kept {
    __device__ void keep(const typename Math::Scores&) {}
    __device__ void keep(const typename Math::Pairs&) {}
  };

  // dP becomes dP - delta; `deltas(j)` are those of a lane's two queries of fragment j.
  template <class Math, class Kept, class Deltas>
  static __device__ void run(typename Math::Scores& dp, const Kept&, Deltas deltas) {
#pragma unroll
    for (int j = 0; j < Math::Scores::kColFragments; ++j) {
      const ptx::FloatPair delta = deltas(j);
#pragma unroll
      for (int e = 0; e < 4; ++e) dp.v[0][j][e] -= e % 2 ? delta.y : delta.x;
    }
  }

  template <class Math>
  static __device__ void convert(typename Math::Pairs& p, const typename Math::Scores& difference) {
    using DType = typename Math::DType;
#pragma unroll
    for (int j = 0; j < Math::Scores::kColFragments; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float (&x)[4] = difference.v[0][j];
        u32& pair = p.step[j / 2][j % 2 * 2 + h];
        pair = DType::multiply(pair, DType::pack(x[2 * h], x[2 * h + 1]));
      }
  }
};

}  // namespace fa::sm90::backward::derivative
