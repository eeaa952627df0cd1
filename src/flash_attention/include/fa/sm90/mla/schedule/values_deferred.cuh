// SPDX-License-Identifier: Apache-2.0
// As ValuesFirst, but a warpgroup multiplies its own P with V only when the scores of the next block are
// computed. The tensor cores then have this product to do during the softmax of that block.
#pragma once
#include <fa/sm90/mla/block_turns.cuh>

namespace fa::sm90::mla::schedule {

struct ValuesDeferred : BlockTurns<ValuesDeferred> {
  // The rest of a block whose scores are being computed.
  template <class Consumer>
  static __device__ void finish_own(Consumer& c) {
    c.template wait_products<0>();  // S is complete
    c.announce_scores();
    c.softmax(c.s(), c.p());
    c.write_weights(c.p());
    c.rescale(c.o());
    if (c.has_next_block()) c.wait_their_scores();  // S of the next block is complete
    c.begin_turn();
    c.issue_accumulate(c.o(), c.p(), c.v());  // O += P V
    c.template wait_products<0>();            // O is complete, V was read
    c.release_own();
  }
};

}  // namespace fa::sm90::mla::schedule
