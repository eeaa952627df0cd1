// SPDX-License-Identifier: Apache-2.0
// The operand was read before the loop over key blocks and stays in registers.
#pragma once

namespace fa::sm80::feed {

struct Held {
  template <int Steps, class Read>
  static __device__ void hold(Read read) {
#pragma unroll
    for (int step = 0; step < Steps; ++step) read(step);
  }

  template <int Steps, class Read>
  static __device__ void begin(Read) {}

  template <int Steps, class Read>
  static __device__ void before(int, Read) {}
};

}  // namespace fa::sm80::feed
