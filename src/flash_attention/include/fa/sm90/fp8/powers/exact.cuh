// SPDX-License-Identifier: Apache-2.0
// Every weight is one MUFU, and its conversion to e4m3 half an instruction.
#pragma once
#include <fa/attn/exponential/fused_exp2.cuh>
#include <fa/ptx/e4m3.cuh>

namespace fa::sm90::fp8::powers {

struct Exact {
  static constexpr float kBias = 0.f;  // weights are 2^kBias too large, on average

  struct Watch {
    u32 bytes = 0;

    // Whether a weight was 2^8 or more, whose code is 0x78, or NaN, whose code is 0x7f.
    __device__ bool large() const { return (bytes & 0x80808080) != 0; }
  };

  // Four weights 2^(factor s - offset), and their sum.
  template <class Sums>
  static __device__ u32 weights(int /*group of 16 keys*/, const float (&s)[4], float offset,
                                float factor, float& sum, Watch& watch) {
    float w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = attn::exponential::FusedExp2::exp(s[i], offset, factor);
    Sums::add(sum, w[0], w[1], w[2], w[3]);
    const u32 packed = ptx::E4m3::pack(w[0], w[1], w[2], w[3]);
    watch.bytes |= packed + 0x08080808;  // from 0x78 on a byte gets its top bit
    return packed;
  }
};

}  // namespace fa::sm90::fp8::powers
