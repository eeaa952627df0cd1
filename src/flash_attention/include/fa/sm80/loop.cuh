// SPDX-License-Identifier: Apache-2.0
// The slot Loop: how the key blocks of a CTA follow each other.
#pragma once
#include <fa/attn/softmax.cuh>

namespace fa::sm80::loop {

// All key blocks run the same code: the first one rescales zeros by exp(-inf).
struct Uniform {
  template <class Schedule, class Block>
  static __device__ void run(Block& b) {
    Schedule::begin(b);
    b.reset();
#pragma unroll 1
    for (int step = 0; step < b.num_steps(); ++step)
      Schedule::template step<attn::LaterBlock>(b, step);
  }
};

// The first key block has its own code: no rescaling, no earlier statistics to combine with.
struct Peeled {
  template <class Schedule, class Block>
  static __device__ void run(Block& b) {
    Schedule::begin(b);
    Schedule::template step<attn::FirstBlock>(b, 0);
#pragma unroll 1
    for (int step = 1; step < b.num_steps(); ++step)
      Schedule::template step<attn::LaterBlock>(b, step);
  }
};

}  // namespace fa::sm80::loop
