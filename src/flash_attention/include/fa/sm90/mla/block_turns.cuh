// SPDX-License-Identifier: Apache-2.0
// The order of a warpgroup's blocks, which all schedules share: it multiplies P of the other warpgroup with
// V, computes the scores of its own next block, and finishes that block as Schedule::finish_own says.
#pragma once

namespace fa::sm90::mla {

template <class Schedule>
struct BlockTurns {
  template <class Consumer>
  static __device__ void run(Consumer& c) {
    if (c.has_block() && c.owns_block()) {
      c.begin_turn();
      c.issue_scores(c.s(), c.ring());  // S = Q K^T
      Schedule::finish_own(c);
    }
#pragma unroll 1
    while (c.has_next_block()) {
      begin_theirs(c);
      c.begin_turn();
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
    c.begin_turn();
    c.issue_accumulate(c.o(), c.their_p(), c.v());  // O += P V
  }
};

}  // namespace fa::sm90::mla
