// SPDX-License-Identifier: Apache-2.0
// Of every four groups of 16 keys, `Groups` have weights without a MUFU. The code of an e4m3 number is
// eight times its logarithm, plus 56, up to 0.7 of a step: rounded to a whole number, 8 log2 P + 56 is the
// code of a piecewise linear 2^x. Half precision rounds numbers from 1024 on to whole ones, so that
// the code is then the lower byte.
#pragma once
#include <fa/ptx/math.cuh>
#include <fa/sm90/fp8/powers/exact.cuh>

namespace fa::sm90::fp8::powers {

template <int Groups>
struct Linear {
  // A line lies above 2^x between whole numbers. The other weights are made as much too large.
  static constexpr float kBias = 0.0573f;

  struct Watch {
    Exact::Watch exact;
    u32 top = 0;  // the largest codes plus 1024, a pair

    __device__ bool large() const {
      const u32 swapped = __byte_perm(top, top, 0x1032);
      return exact.large() || (ptx::max_f16x2(top, swapped) & 0xffff) >= kHalf1024 + 0x78;
    }
  };

  template <class Sums>
  static __device__ u32 weights(int group, const float (&s)[4], float offset, float factor,
                                float& sum, Watch& watch) {
    if (group % 4 < 4 - Groups)
      return Exact::weights<Sums>(group, s, offset - kBias, factor, sum, watch.exact);
    const float by = 8.f * factor, from = fmaf(-8.f, offset, 1024.f + 56.f);
    u32 pairs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const u32 codes = ptx::pack_f16x2(fmaf(s[2 * i], by, from), fmaf(s[2 * i + 1], by, from));
      watch.top = ptx::max_f16x2(watch.top, codes);
      pairs[i] = ptx::max_f16x2(codes, kHalf1024 << 16 | kHalf1024);  // below code 0 it is 0
    }
    return __byte_perm(pairs[0], pairs[1], 0x6420);
  }

 private:
  static constexpr u32 kHalf1024 = 0x6400;
};

}  // namespace fa::sm90::fp8::powers
