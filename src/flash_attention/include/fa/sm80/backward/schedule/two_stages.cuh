// SPDX-License-Identifier: Apache-2.0
// There are two buffers for blocks: the next one is loaded during all products of this one.
#pragma once

namespace fa::sm80::backward::schedule {

struct TwoStages {
  template <class Block>
  static __device__ void run(Block& b) {
    b.load_own();
    b.load_visited(0, b.first());
    b.commit();
    int stage = 0;
#pragma unroll 1
    for (auto here = b.first(); b.visits(here); stage ^= 1) {
      b.template wait<0>();
      __syncthreads();  // the block has arrived; every warp is done with the one before and its dS
      const auto next = b.after(here);
      if (b.visits(next)) b.load_visited(stage ^ 1, next);
      b.commit();
      b.products(stage, here);
      b.meet();  // dS is in shared memory
      b.add_dq(here);
      here = next;
    }
  }
};

}  // namespace fa::sm80::backward::schedule
