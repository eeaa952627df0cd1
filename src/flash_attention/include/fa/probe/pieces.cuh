// SPDX-License-Identifier: Apache-2.0
// A float in three pieces of 8 significant bits, each exact in fp16 (down to 2^-24) and bf16.
#pragma once
#include <fa/core.cuh>

namespace fa::probe {

inline constexpr int kPieces = 3;

__device__ inline float upper_bits(float x) {
  return __uint_as_float(__float_as_uint(x) & 0xffff0000);
}

__device__ inline float piece(float x, int index) {
  for (int i = 0; i < index; ++i) x -= upper_bits(x);
  return index == kPieces - 1 ? x : upper_bits(x);
}

}  // namespace fa::probe
