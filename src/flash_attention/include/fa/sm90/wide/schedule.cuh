// SPDX-License-Identifier: Apache-2.0
// The order of a warpgroup's blocks: it computes the scores of its next block before P of the other one's
// block is there, and their softmax while it multiplies that P with V. The tensor cores have the products of
// one warpgroup to do during the softmax of the other.
#pragma once

namespace fa::sm90::wide {

struct Schedule {
  template <class Consumer>
  static __device__ void run(Consumer& c) {
    if (c.has_block() && c.owns_block()) {
      c.ping_pong_wait();
      c.issue_scores(c.s(), c.ring());  // S = Q K^T
      c.template wait_products<0>();    // S is complete, K was read
      c.release_keys();
      c.softmax(c.s(), c.p());
      finish_own(c);
    }
#pragma unroll 1
    while (c.has_next_block()) {
      c.ping_pong_wait();
      c.issue_scores(c.s(), c.next_ring());  // S = Q K^T of the next block
      begin_theirs(c);
      c.template wait_products<1>();  // S is complete, K was read
      c.release_keys();
      c.next_block();
      c.softmax(c.s(), c.p());
      c.template wait_products<0>();  // O is complete, V and P of the block before were read
      c.release_values();
      finish_own(c);
    }
    if (c.has_block()) {
      begin_theirs(c);
      c.template wait_products<0>();  // O is complete, V and P were read
      c.release_values();
      c.next_block();
    }
  }

 private:
  // A block of the other warpgroup.
  template <class Consumer>
  static __device__ void begin_theirs(Consumer& c) {
    c.wait_weights();        // P of the other warpgroup is written
    c.follow_maxima(c.o());  // O is relative to its maxima
    c.wait_values();         // V has arrived
    c.ping_pong_wait();
    c.issue_accumulate(c.o(), c.their_p(), c.v());  // O += P V
  }

  // The rest of a block of this warpgroup. P is written where the other warpgroup has read: it reads the P
  // before this one until it gives its own.
  template <class Consumer>
  static __device__ void finish_own(Consumer& c) {
    c.write_weights(c.p());
    c.rescale(c.o());
    c.wait_values();  // V has arrived
    c.ping_pong_wait();
    c.issue_accumulate(c.o(), c.p(), c.v());  // O += P V
    c.template wait_products<0>();            // O is complete, V was read
    c.release_values();
    c.next_block();
  }
};

}  // namespace fa::sm90::wide
