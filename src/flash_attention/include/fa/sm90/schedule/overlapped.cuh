// SPDX-License-Identifier: Apache-2.0
// The scores of a block are issued before the weights of the block above it are multiplied with V,
// so that the tensor cores work on O += P V while this warpgroup computes exponentials.
#pragma once
#include <fa/attn/online.cuh>

namespace fa::sm90::schedule {

struct Overlapped {
  template <class Consumer>
  static __device__ void run(Consumer& c) {
    Consumer::Config::FirstBlock::run(c);
    if (c.has_block()) {
      c.wait_k();
      c.begin_turn();
      c.issue_scores();
      c.end_turn();
      c.clear_tail();
      c.template wait_products<0>();  // S is here
      c.softmax(attn::Masked{});
      c.rescale();
      c.convert();
      c.next_block();
#pragma unroll 1
      while (c.near_end()) step(c, attn::Masked{});
#pragma unroll 1
      while (c.open()) step(c, attn::Open{});
#pragma unroll 1
      while (c.near_start()) step(c, attn::Masked{});
      c.queries_read();
      c.wait_v();
      c.issue_accumulate();
      c.template wait_products<0>();  // O is here, V read
      c.release_v();
    } else {
      c.queries_read();
    }
  }

 private:
  template <class Consumer, class Block>
  static __device__ void step(Consumer& c, Block block) {
    c.wait_k();
    c.begin_turn();
    c.issue_scores();
    c.wait_v();
    c.issue_accumulate();  // with the weights of the block above
    c.end_turn();
    c.template wait_products<1>();  // S is here
    c.softmax(block);
    c.template wait_products<0>();  // O is here, V and the weights read
    c.release_v();
    c.convert();
    c.rescale();
    c.next_block();
  }
};

}  // namespace fa::sm90::schedule
