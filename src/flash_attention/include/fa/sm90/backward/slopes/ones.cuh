// SPDX-License-Identifier: Apache-2.0
// Scores are only scaled: dS needs no other factor.
#pragma once
#include <fa/core.cuh>

namespace fa::sm90::backward::slopes {

struct Ones {
  template <class Math, class Score>
  struct Kept {
    __device__ void keep_slopes(const typename Math::Scores&) {}
    __device__ void multiply_slopes(typename Math::Scores&) const {}
  };
};

}  // namespace fa::sm90::backward::slopes
