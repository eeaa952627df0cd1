// SPDX-License-Identifier: Apache-2.0
// A warpgroup multiplies P of the other one with V as soon as it is written, before it computes the scores
// of its own next block. The stage of P is then released early, and its next block has most time to arrive.
#pragma once
#include <fa/sm90/mla/block_turns.cuh>

namespace fa::sm90::mla::schedule {

struct ValuesFirst : BlockTurns<ValuesFirst> {
  // The rest of a block whose scores are being computed.
  template <class Consumer>
  static __device__ void finish_own(Consumer& c) {
    c.template wait_products<0>();  // S is complete
    c.softmax(c.s(), c.p());
    c.write_weights(c.p());
    c.rescale(c.o());
    c.issue_accumulate(c.o(), c.p(), c.v());  // O += P V
    c.template wait_products<0>();            // O is complete, V was read
    c.release_own();
  }
};

}  // namespace fa::sm90::mla::schedule
