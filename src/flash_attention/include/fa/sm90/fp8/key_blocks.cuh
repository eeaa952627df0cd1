// SPDX-License-Identifier: Apache-2.0
// The key blocks of a tile, from the last to the first. P V of a block belongs to the step of the next
// one, so the first block has only scores, and after the last step one product is left.
#pragma once
#include <fa/attn/online.cuh>

namespace fa::sm90::fp8 {

template <class Schedule, class Consumer>
__device__ void visit_key_blocks(Consumer& c) {
  if (!c.has_block()) {
    c.queries_read();
    return;
  }
  c.wait_k();  // K has arrived
  c.begin_turn();
  c.issue_scores(c.s(), c.k());   // S = Q K^T
  c.template wait_products<0>();  // S is complete
  c.release_k();
  c.mask(c.s(), attn::Masked{});
  c.weigh(c.p(), c.s(), attn::Masked{});
  c.next_block();
#pragma unroll 1
  while (c.near_end()) Schedule::step(c, attn::Masked{});
#pragma unroll 1
  while (c.open()) Schedule::step(c, attn::Open{});
#pragma unroll 1
  while (c.near_start()) Schedule::step(c, attn::Masked{});
  c.queries_read();  // the last scores are computed
  c.wait_v();        // V of the last block has arrived
  c.begin_turn();
  c.issue_accumulate(c.o(), c.p(), c.v());  // O += P V
  c.template wait_products<0>();            // O is complete, V was read
  c.release_v();
  c.take_sums(c.o());
}

}  // namespace fa::sm90::fp8
