// SPDX-License-Identifier: Apache-2.0
// P V of a block and Q K^T of the next are issued together, and this warpgroup computes weights while it
// has no product in flight. Other warpgroups use the tensor cores then.
#pragma once
#include <fa/core.cuh>

namespace fa::sm90::fp8::schedule {

struct Serial {
  template <class Consumer, class Block>
  static __device__ void step(Consumer& c, Block block) {
    const auto k = c.k();
    const auto v = c.v();
    c.wait_v();  // V of the previous block has arrived
    c.wait_k();  // K has arrived
    c.ping_pong_wait();
    c.promote(c.o());
    c.issue_accumulate(c.o(), c.p(), v);  // O += P V of the previous block
    c.issue_scores(c.s(), k);             // S = Q K^T
    c.template wait_products<0>();        // S and O are complete
    c.release_v();
    c.release_k();
    c.take_sums(c.o());
    c.mask(c.s(), block);
    c.weigh(c.p(), c.s(), block);
    c.rescale(c.o());
    c.next_block();
  }
};

}  // namespace fa::sm90::fp8::schedule
