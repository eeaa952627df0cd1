// SPDX-License-Identifier: Apache-2.0
// As ValuesFirst, but a warpgroup multiplies its own P with V only when the scores of the next block are
// computed. The tensor cores then have this product to do during the softmax of that block.
#pragma once

namespace fa::sm90::mla::schedule {

struct ValuesDeferred {
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
