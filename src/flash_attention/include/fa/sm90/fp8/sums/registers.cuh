// SPDX-License-Identifier: Apache-2.0
// The sums of P are added in fp32, before P is rounded.
#pragma once
#include <fa/attn/row_stats.cuh>

namespace fa::sm90::fp8::sums {

struct Registers {
  static constexpr int kRows = 0;  // of the transpose of V

  static __device__ void store_rows(char*) {}
  template <int RowBytes>
  static __device__ void write_rows(u32) {}
  static __device__ void add(float& sum, float x, float y, float z, float w) {
    sum += (x + y) + (z + w);
  }
  template <int Columns>
  static __device__ void take(Accumulator<16, Columns>&, attn::RowStats<16>&, float /*zero*/) {}
};

}  // namespace fa::sm90::fp8::sums
