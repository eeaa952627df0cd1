// SPDX-License-Identifier: Apache-2.0
// All key blocks run the same code: the first one rescales zeros by exp(-inf).
#pragma once
#include <fa/attn/softmax.cuh>

namespace fa::sm80::loop {

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

}  // namespace fa::sm80::loop
