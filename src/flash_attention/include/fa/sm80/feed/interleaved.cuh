// SPDX-License-Identifier: Apache-2.0
// Fragments are read `Tiles` steps at a time, just before the first product that needs them. Few
// registers are live, but the latency of ldmatrix is exposed.
#pragma once

namespace fa::sm80::feed {

template <int Tiles>
struct Interleaved {
  template <int Steps, class Read>
  static __device__ void hold(Read) {}

  template <int Steps, class Read>
  static __device__ void begin(Read) {}

  template <int Steps, class Read>
  static __device__ void before(int step, Read read) {
    if (step % Tiles == 0) {
#pragma unroll
      for (int t = step; t < step + Tiles && t < Steps; ++t) read(t);
    }
  }
};

}  // namespace fa::sm80::feed
