// SPDX-License-Identifier: Apache-2.0
// A block is loaded when it is needed, and waited for at once: no copy overlaps with a product.
#pragma once

namespace fa::sm80::backward::schedule {

struct Lazy {
  template <class Block>
  static __device__ void run(Block& b) {
    b.load_own();
#pragma unroll 1
    for (auto here = b.first(); b.visits(here); here = b.after(here)) {
      b.load_visited(0, here);
      b.commit();
      b.template wait<0>();
      __syncthreads();  // the block has arrived; every warp is done with the last dS
      b.products(0, here);
      __syncthreads();  // dS is in shared memory; every warp is done with the block
      b.add_dq(here);
    }
  }
};

}  // namespace fa::sm80::backward::schedule
