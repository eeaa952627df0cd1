// SPDX-License-Identifier: Apache-2.0
// Q K^T of a block is issued before P V of the previous block, so that the tensor cores compute
// O += P V while this warpgroup computes exponentials.
#pragma once
#include <fa/attn/rescale.cuh>

namespace fa::sm90::schedule {

struct Overlapped {
  template <class Consumer>
  static __device__ void run(Consumer& c) {
    Consumer::Config::FirstBlock::run(c);
    if (c.has_block()) {
      auto& s = c.s();
      auto& p = c.p();
      c.draw(p, attn::Masked{});
      c.wait_k();                       // K has arrived
      c.ping_pong_wait();               // this warpgroup may issue
      c.issue_scores(s, c.q(), c.k());  // S = Q K^T
      c.ping_pong_arrive();
      c.look_up(attn::Masked{});      // which keys these are
      c.clear_tail();                 // V is zero beyond the last key
      c.template wait_products<0>();  // S is complete
      c.mask(s, attn::Masked{});
      c.release_k();
      c.softmax(s, attn::Masked{});
      c.rescale(c.o(), attn::Masked{});
      c.convert(p, s);
      c.next_block();
#pragma unroll 1
      while (c.near_end()) step(c, s, p, attn::Masked{});
#pragma unroll 1
      while (c.open()) step(c, s, p, attn::Open{});
#pragma unroll 1
      while (c.near_start()) step(c, s, p, attn::Masked{});
      c.queries_read();                     // the last scores are computed
      c.wait_v();                           // V of the last block has arrived
      c.issue_accumulate(c.o(), p, c.v());  // O += P V
      c.template wait_products<0>();        // O is complete, V was read
      c.release_v();
    } else {
      c.queries_read();
    }
  }

 private:
  // `p` holds P of the previous block, then P of this one.
  template <class Consumer, class Scores, class Weights, class Block>
  static __device__ void step(Consumer& c, Scores& s, Weights& p, Block block) {
    c.draw(p, block);
    c.wait_k();                           // K has arrived
    c.ping_pong_wait();                   // this warpgroup may issue
    c.issue_scores(s, c.q(), c.k());      // S = Q K^T
    c.wait_v();                           // V of the previous block has arrived
    c.issue_accumulate(c.o(), p, c.v());  // O += P V of the previous block
    c.ping_pong_arrive();
    c.look_up(block);               // which keys these are
    c.template wait_products<1>();  // S is complete
    c.mask(s, block);
    c.try_stale_max(s, block);  // may read K again
    c.release_k();
    c.softmax(s, block);
    c.template wait_products<0>();  // O is complete, V and P were read
    c.release_v();
    c.convert(p, s);
    c.rescale(c.o(), block);
    c.next_block();
  }
};

}  // namespace fa::sm90::schedule
