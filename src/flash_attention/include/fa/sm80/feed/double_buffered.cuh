// SPDX-License-Identifier: Apache-2.0
// The next `Tiles` steps are read before the products of the current ones: ldmatrix overlaps with
// mma.
#pragma once

namespace fa::sm80::feed {

template <int Tiles>
struct DoubleBuffered {
  template <int Steps, class Read>
  static __device__ void hold(Read) {}

  template <int Steps, class Read>
  static __device__ void begin(Read read) {
#pragma unroll
    for (int t = 0; t < Tiles && t < Steps; ++t) read(t);
  }

  template <int Steps, class Read>
  static __device__ void before(int step, Read read) {
    if (step % Tiles == 0) {
#pragma unroll
      for (int t = step + Tiles; t < step + 2 * Tiles && t < Steps; ++t) read(t);
    }
  }
};

}  // namespace fa::sm80::feed
