// SPDX-License-Identifier: Apache-2.0
// Softcapped scores: cap tanh(scale s / cap). S becomes the hyperbolic tangent, and the cap replaces
// the softmax scale.
#pragma once
#include <fa/call_args.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn::score {

struct Softcap {
  static __device__ float scale(const CallArgs& args) { return args.softcap; }

  template <int Rows, int Cols>
  static __device__ void change(Accumulator<Rows, Cols>& s, const CallArgs& args) {
    const float inner = args.softmax_scale / args.softcap;
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int j = 0; j < Cols / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s.v[i][j][e] = ptx::tanh(s.v[i][j][e] * inner);
  }

  // The derivative of a changed score by the scaled one: 1 - tanh^2, or 0 if a mask made it -inf.
  static __device__ float slope(float changed) { return fmaxf(1.f - changed * changed, 0.f); }
};

}  // namespace fa::attn::score
