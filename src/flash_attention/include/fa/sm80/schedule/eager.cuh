// SPDX-License-Identifier: Apache-2.0
// V is loaded during S = Q K^T; the next K is loaded during the softmax and O += P V.
#pragma once

namespace fa::sm80::schedule {

struct Eager {
  template <class Block>
  static __device__ void begin(Block& b) {
    b.load_q();
    b.commit();
    b.load_k(0);
    b.commit();
    b.template wait<1>();
    __syncthreads();  // Q has arrived; the first K is being loaded
    b.hold_q();
  }

  template <class Form, class Block>
  static __device__ void step(Block& b, int step) {
    b.template wait<0>();
    __syncthreads();  // K has arrived; every warp is done with the last V, so its buffer is free
    b.load_v(step);
    b.commit();
    b.scores();
    b.mask(step);
    b.template wait<0>();
    __syncthreads();  // V has arrived; every warp is done with K, so its buffer is free
    if (step + 1 < b.num_steps()) {
      b.load_k(step + 1);
      b.commit();
    }
    b.softmax(Form{});
    b.accumulate();
  }
};

}  // namespace fa::sm80::schedule
