// SPDX-License-Identifier: Apache-2.0
// There are two buffers for blocks: the next one is loaded during all products of this one.
#pragma once

namespace fa::sm80::backward::schedule {

struct TwoStages {
  template <class Block>
  static __device__ void run(Block& b) {
    b.load_own();
    auto here = b.first();
    b.load_visited(0, here);
    b.commit();
#pragma unroll 1
    for (int step = 0; step < b.num_steps(); ++step) {
      b.template wait<0>();
      __syncthreads();  // the block has arrived; every warp is done with the one before and its dS
      const auto next = b.after(here);
      if (step + 1 < b.num_steps()) b.load_visited((step + 1) % 2, next);
      b.commit();
      b.products(step % 2, here);
      b.meet();  // dS is in shared memory
      b.add_dq(here);
      here = next;
    }
  }
};

}  // namespace fa::sm80::backward::schedule
