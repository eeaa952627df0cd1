// SPDX-License-Identifier: Apache-2.0
// V flies during S = Q K^T; the next K flies during the softmax and O += P V.
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
    __syncthreads();  // Q is here; the first K flies
    b.hold_q();
  }

  template <class Form, class Block>
  static __device__ void step(Block& b, int step) {
    b.template wait<0>();
    __syncthreads();  // K is here; every warp is done with the last V: its buffer is free
    b.load_v(step);
    b.commit();
    b.scores();
    b.mask(step);
    b.template wait<0>();
    __syncthreads();  // V is here; every warp is done with K: its buffer is free
    if (step + 1 < b.num_steps()) {
      b.load_k(step + 1);
      b.commit();
    }
    b.softmax(Form{});
    b.accumulate();
  }
};

}  // namespace fa::sm80::schedule
