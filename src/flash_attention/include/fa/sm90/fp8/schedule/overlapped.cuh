// SPDX-License-Identifier: Apache-2.0
// Q K^T of a block is issued before P V of the previous block, so that the tensor cores compute
// O += P V while this warpgroup computes weights.
#pragma once
#include <fa/core.cuh>

namespace fa::sm90::fp8::schedule {

struct Overlapped {
  template <class Consumer, class Block>
  static __device__ void step(Consumer& c, Block block) {
    typename Consumer::P next;
    const auto k = c.k();
    const auto v = c.v();
    c.wait_k();  // K has arrived
    c.ping_pong_wait();
    c.issue_scores(c.s(), k);  // S = Q K^T
    c.promote(c.o());
    c.wait_v();                           // V of the previous block has arrived
    c.issue_accumulate(c.o(), c.p(), v);  // O += P V of the previous block
    c.template wait_products<1>();        // S is complete
    c.release_k();
    c.mask(c.s(), block);
    c.weigh(next, c.s(), block);
    c.template wait_products<0>();  // O is complete, V and P were read
    c.release_v();
    c.replace(c.p(), next);
    c.rescale(c.o());
    c.take_sums(c.o());
    c.next_block();
  }
};

}  // namespace fa::sm90::fp8::schedule
