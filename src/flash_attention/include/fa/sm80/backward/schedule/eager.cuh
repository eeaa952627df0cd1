// SPDX-License-Identifier: Apache-2.0
// The next block is loaded during the last product of this one, dQ, which does not read it.
#pragma once

namespace fa::sm80::backward::schedule {

struct Eager {
  template <class Block>
  static __device__ void run(Block& b) {
    b.load_own();
    b.load_visited(0, b.first());
    b.commit();
#pragma unroll 1
    for (auto here = b.first(); b.visits(here);) {
      b.template wait<0>();
      __syncthreads();  // the block has arrived; every warp is done with the last dS
      b.products(0, here);
      __syncthreads();  // dS is in shared memory; every warp is done with the block
      const auto next = b.after(here);
      if (b.visits(next)) b.load_visited(0, next);
      b.commit();
      b.add_dq(here);
      here = next;
    }
  }
};

}  // namespace fa::sm80::backward::schedule
