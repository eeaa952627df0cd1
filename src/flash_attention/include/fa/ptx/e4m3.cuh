// SPDX-License-Identifier: Apache-2.0
// e4m3: 8 bits, a sign, four of exponent and three of mantissa. The largest number is 448, there is no
// infinity, and the bits below the sign are all set in NaN.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

struct E4m3 {
  // The nearest e4m3 numbers, the first in the lowest byte. Numbers beyond the range become 448.
  static __device__ u32 pack(float x, float y, float z, float w) {
    unsigned short low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(y), "f"(x));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(w), "f"(z));
    u32 packed;
    asm("mov.b32 %0, {%1, %2};" : "=r"(packed) : "h"(low), "h"(high));
    return packed;
  }

  // The numbers in two bytes as a pair of halves, exactly. NaN remains NaN.
  static __device__ u32 to_f16x2(unsigned short bytes) {
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(bytes));
    return pair;
  }
};

}  // namespace fa::ptx
