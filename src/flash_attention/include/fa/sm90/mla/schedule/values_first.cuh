// SPDX-License-Identifier: Apache-2.0
// A warpgroup multiplies P of the other one with V as soon as it is written, before it computes the scores
// of its own next block. The stage of P is then released early, and its next block has most time to arrive.
#pragma once

namespace fa::sm90::mla::schedule {

struct ValuesFirst {
  template <class Consumer>
  static __device__ void run(Consumer& c) {
    if (c.has_block() && c.owns_block()) {
      c.begin_turn();
      c.issue_scores(c.s(), c.ring());  // S = Q K^T
      finish_own(c);
    }
#pragma unroll 1
    while (c.has_next_block()) {
      begin_theirs(c);
      c.begin_turn();
      c.issue_scores(c.s(), c.next_ring());  // S = Q K^T of the next block
      c.template wait_products<1>();         // O is complete, V and P were read
      c.release_theirs();
      finish_own(c);
    }
    if (c.has_block()) {
      begin_theirs(c);
      c.template wait_products<0>();  // O is complete, V and P were read
      c.release_theirs();
    }
  }

 private:
  template <class Consumer>
  static __device__ void begin_theirs(Consumer& c) {
    c.wait_weights();        // P of the other warpgroup is written
    c.follow_maxima(c.o());  // O is relative to its maxima
    c.begin_turn();
    c.issue_accumulate(c.o(), c.their_p(), c.v());  // O += P V
  }

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
