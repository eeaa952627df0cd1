// SPDX-License-Identifier: Apache-2.0
// dS = P (dP - delta) with a P that is kept while the product dV reads its operand: nothing may touch the
// registers of an operand before the product is complete.
#pragma once
#include <fa/sm90/backward/products.cuh>

namespace fa::sm90::backward {

template <template <class> class KeptP>
struct WithKeptP {
  template <class Math>
  using Kept = KeptP<Math>;

  // dP becomes dS; `deltas(j)` are those of a lane's two queries of fragment j.
  template <class Math, class Deltas>
  static __device__ void run(typename Math::Scores& dp, const Kept<Math>& kept, Deltas deltas) {
#pragma unroll
    for (int j = 0; j < Math::Scores::kColFragments; ++j) {
      const ptx::FloatPair delta = deltas(j);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        dp.v[0][j][e] = kept.p(j, e) * (dp.v[0][j][e] - (e % 2 ? delta.y : delta.x));
    }
  }

  template <class Math>
  static __device__ void convert(typename Math::Pairs& p, const typename Math::Scores& ds) {
    Math::convert(p, ds);
  }
};

}  // namespace fa::sm90::backward
