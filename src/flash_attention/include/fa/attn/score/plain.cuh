// SPDX-License-Identifier: Apache-2.0
// Scores as the product gives them, times the softmax scale.
#pragma once
#include <fa/call_args.cuh>

namespace fa::attn::score {

struct Plain {
  static __device__ float scale(const CallArgs& args) { return args.softmax_scale; }

  template <int Rows, int Cols>
  static __device__ void change(Accumulator<Rows, Cols>&, const CallArgs&) {}

  // The derivative of a changed score by the scaled one.
  static __device__ float slope(float /*changed*/) { return 1.f; }
};

}  // namespace fa::attn::score
