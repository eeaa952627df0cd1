// SPDX-License-Identifier: Apache-2.0
// One key block: scores, softmax and O += P V, each finished before the next. S and P may be narrower
// than the block, if only its first keys are seen.
#pragma once
#include <fa/attn/online.cuh>

namespace fa::sm90 {

template <class Consumer, class Scores, class Weights, class Block>
__device__ void serial_step(Consumer& c, Scores& s, Weights& p, Block block) {
  c.wait_k();                       // K has arrived
  c.begin_turn();                   // this warpgroup may issue
  c.issue_scores(s, c.q(), c.k());  // S = Q K^T
  c.end_turn();
  c.clear_tail();                 // V is zero beyond the last key
  c.template wait_products<0>();  // S is complete
  c.mask(s, block);
  c.guess(s, block);  // may read K again
  c.release_k();
  c.softmax(s, block);
  c.rescale(c.o(), block);
  c.convert(p, s);
  c.wait_v();                           // V has arrived
  c.issue_accumulate(c.o(), p, c.v());  // O += P V
  c.template wait_products<0>();        // O is complete, V was read
  c.release_v();
  c.next_block();
}

}  // namespace fa::sm90
