// SPDX-License-Identifier: Apache-2.0
// The first key block has its own code: no rescaling, no earlier statistics to combine with.
#pragma once
#include <fa/attn/softmax.cuh>

namespace fa::sm80::loop {

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
