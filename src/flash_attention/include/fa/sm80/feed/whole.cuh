// SPDX-License-Identifier: Apache-2.0
// Every fragment of the block is read before the first product.
#pragma once

namespace fa::sm80::feed {

struct Whole {
  template <int Steps, class Read>
  static __device__ void begin(Read read) {
#pragma unroll
    for (int step = 0; step < Steps; ++step) read(step);
  }

  template <int Steps, class Read>
  static __device__ void before(int, Read) {}
};

}  // namespace fa::sm80::feed
