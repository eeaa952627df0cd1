// SPDX-License-Identifier: Apache-2.0
// The slot Schedule of MLA kernels: the order of a warpgroup's products.
#pragma once

namespace fa::sm90::mla {

// The order of a warpgroup's blocks, which all schedules share: it multiplies P of the other warpgroup with
// V, computes the scores of its own next block, and finishes that block as Schedule::finish_own says.
template <class Schedule>
struct AlternateBlocks {
  template <class Consumer>
  static __device__ void run(Consumer& c) {
    if (c.has_block() && c.owns_block()) {
      c.ping_pong_wait();
      c.issue_scores(c.s(), c.ring());  // S = Q K^T
      Schedule::finish_own(c);
    }
#pragma unroll 1
    while (c.has_next_block()) {
      begin_theirs(c);
      c.ping_pong_wait();
      c.issue_scores(c.s(), c.next_ring());  // S = Q K^T of the next block
      c.template wait_products<1>();         // O is complete, V and P were read
      c.release_theirs();
      Schedule::finish_own(c);
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
    c.ping_pong_wait();
    c.issue_accumulate(c.o(), c.their_p(), c.v());  // O += P V
  }
};

}  // namespace fa::sm90::mla

namespace fa::sm90::mla::schedule {

// A warpgroup multiplies P of the other one with V as soon as it is written, before it computes the scores
// of its own next block. The stage of P is then released early, and its next block has most time to arrive.
struct ValuesFirst : AlternateBlocks<ValuesFirst> {
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

// As ValuesFirst, but a warpgroup multiplies its own P with V only when the scores of the next block are
// computed. The tensor cores then have this product to do during the softmax of that block.
struct ValuesDeferred : AlternateBlocks<ValuesDeferred> {
  // The rest of a block whose scores are being computed.
  template <class Consumer>
  static __device__ void finish_own(Consumer& c) {
    c.template wait_products<0>();  // S is complete
    c.announce_scores();
    c.softmax(c.s(), c.p());
    c.write_weights(c.p());
    c.rescale(c.o());
    if (c.has_next_block()) c.wait_their_scores();  // S of the next block is complete
    c.ping_pong_wait();
    c.issue_accumulate(c.o(), c.p(), c.v());  // O += P V
    c.template wait_products<0>();            // O is complete, V was read
    c.release_own();
  }
};

}  // namespace fa::sm90::mla::schedule
