// SPDX-License-Identifier: Apache-2.0
// One block after the other: scores, softmax, accumulate, each finished before the next.
#pragma once
#include <fa/attn/online.cuh>

namespace fa::sm90::schedule {

struct Serial {
  template <class Consumer>
  static __device__ void run(Consumer& c) {
    Consumer::Config::FirstBlock::run(c);
#pragma unroll 1
    while (c.near_end()) step(c, attn::Masked{});
#pragma unroll 1
    while (c.open()) step(c, attn::Open{});
#pragma unroll 1
    while (c.near_start()) step(c, attn::Masked{});
    c.queries_read();
  }

 private:
  template <class Consumer, class Block>
  static __device__ void step(Consumer& c, Block block) {
    c.wait_k();
    c.begin_turn();
    c.issue_scores();
    c.end_turn();
    c.clear_tail();
    c.template wait_products<0>();  // S is here
    c.softmax(block);
    c.rescale();
    c.convert();
    c.wait_v();
    c.issue_accumulate();
    c.template wait_products<0>();  // O is here, V read
    c.release_v();
    c.next_block();
  }
};

}  // namespace fa::sm90::schedule
