// SPDX-License-Identifier: Apache-2.0
// P V of a block and Q K^T of the next are issued together, and this warpgroup computes weights while it
// has no product in flight. Other warpgroups use the tensor cores then.
#pragma once
#include <fa/attn/online.cuh>

namespace fa::sm90::fp8::schedule {

struct Serial {
  template <class Consumer>
  static __device__ void run(Consumer& c) {
    if (c.has_block()) {
      c.wait_k();  // K has arrived
      c.begin_turn();
      c.issue_scores(c.s(), c.k());   // S = Q K^T
      c.template wait_products<0>();  // S is complete
      c.release_k();
      c.mask(c.s(), attn::Masked{});
      c.weigh(c.p(), c.s(), attn::Masked{});
      c.next_block();
#pragma unroll 1
      while (c.near_end()) step(c, attn::Masked{});
#pragma unroll 1
      while (c.open()) step(c, attn::Open{});
#pragma unroll 1
      while (c.near_start()) step(c, attn::Masked{});
      c.queries_read();  // the last scores are computed
      c.wait_v();        // V of the last block has arrived
      c.begin_turn();
      c.issue_accumulate(c.o(), c.p(), c.v());  // O += P V
      c.template wait_products<0>();            // O is complete, V was read
      c.release_v();
      c.take_sums(c.o());
    } else {
      c.queries_read();
    }
  }

 private:
  template <class Consumer, class Block>
  static __device__ void step(Consumer& c, Block block) {
    c.wait_v();  // V of the previous block has arrived
    c.wait_k();  // K has arrived
    c.begin_turn();
    c.issue_accumulate(c.o(), c.p(), c.v());  // O += P V of the previous block
    c.issue_scores(c.s(), c.k());             // S = Q K^T
    c.template wait_products<0>();            // S and O are complete
    c.release_v();
    c.release_k();
    c.take_sums(c.o());
    c.mask(c.s(), block);
    c.weigh(c.p(), c.s(), block);
    c.rescale(c.o());
    c.promote(c.o());
    c.next_block();
  }
};

}  // namespace fa::sm90::fp8::schedule
