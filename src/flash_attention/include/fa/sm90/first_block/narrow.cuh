// SPDX-License-Identifier: Apache-2.0
// Where the rows of a warpgroup see only the first few keys of their first block (the diagonal of a
// causal mask, the end of the sequence), the products are only `Keys` wide.
#pragma once
#include <fa/sm90/serial_step.cuh>

namespace fa::sm90::first_block {

template <int Keys>
struct Narrow {
  template <class Consumer>
  static __device__ void run(Consumer& c) {
    typename Consumer::template Scores<Keys> s;
    typename Consumer::template Weights<Keys> p;
    if (c.template first_block_within<Keys>()) serial_step(c, s, p, attn::FirstMasked{});
  }
};

}  // namespace fa::sm90::first_block
