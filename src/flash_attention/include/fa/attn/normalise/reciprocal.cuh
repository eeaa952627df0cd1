// SPDX-License-Identifier: Apache-2.0
// O times 1 / sum: one reciprocal per row, one multiplication per element.
#pragma once
#include <fa/attn/softmax.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn::normalise {

struct Reciprocal {
  template <int Rows, int Dim>
  static __device__ void row(Accumulator<Rows, Dim>& o, int i, int h, float sum) {
    rescale_row(o, i, h, ptx::reciprocal(sum));
  }
};

}  // namespace fa::attn::normalise
