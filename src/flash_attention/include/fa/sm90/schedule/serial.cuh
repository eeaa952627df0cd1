// SPDX-License-Identifier: Apache-2.0
// One block after the other: scores, softmax, accumulate, each finished before the next.
#pragma once
#include <fa/sm90/verbs.cuh>

namespace fa::sm90::schedule {

struct Serial {
  template <class Consumer>
  static __device__ void run(Consumer& c) {
    Consumer::Config::FirstBlock::run(c);
#pragma unroll 1
    while (c.near_end()) serial_step(c, c.s(), c.p(), attn::Masked{});
#pragma unroll 1
    while (c.open()) serial_step(c, c.s(), c.p(), attn::Open{});
#pragma unroll 1
    while (c.near_start()) serial_step(c, c.s(), c.p(), attn::Masked{});
    c.queries_read();  // the last scores are computed
  }
};

}  // namespace fa::sm90::schedule
