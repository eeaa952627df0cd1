// SPDX-License-Identifier: Apache-2.0
// dS = P (dP - delta) with the 16-bit P that the product dV reads. The copy is one in PTX only: ptxas gives
// it the registers of the operand, which nobody overwrites.
#pragma once
#include <fa/sm90/backward/derivative/kept.cuh>

namespace fa::sm90::backward {

template <class Math>
struct RoundedP {
  typename Math::Pairs pairs;

  __device__ void keep(const typename Math::Scores&) {}
  __device__ void keep(const typename Math::Pairs& p) {
#pragma unroll
    for (int j = 0; j < Math::Scores::kColFragments; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        pairs.step[j / 2][j % 2 * 2 + h] = ptx::copy(p.step[j / 2][j % 2 * 2 + h]);
  }
  __device__ float p(int j, int e) const {
    const u32 pair = pairs.step[j / 2][j % 2 * 2 + e / 2];
    return e % 2 ? Math::DType::high(pair) : Math::DType::low(pair);
  }
};

namespace derivative {

struct Rounded : WithKeptP<RoundedP> {};

}  // namespace derivative
}  // namespace fa::sm90::backward
