// SPDX-License-Identifier: Apache-2.0
// Every block is loaded when it is needed and waited for at once: nothing overlaps.
#pragma once

namespace fa::sm80::schedule {

struct Lazy {
  template <class Block>
  static __device__ void begin(Block& b) {
    b.load_q();
    b.commit();
    b.template wait<0>();
    __syncthreads();  // Q has arrived
    b.hold_q();
  }

  template <class Form, class Block>
  static __device__ void step(Block& b, int step) {
    b.load_k(step);
    b.commit();
    b.template wait<0>();
    __syncthreads();  // K has arrived
    b.scores();
    b.mask(step);
    b.softmax(Form{});
    b.load_v(step);
    b.commit();
    b.template wait<0>();
    __syncthreads();  // V has arrived
    b.accumulate();
    __syncthreads();  // every warp is done with K and V, so their buffers are free
  }
};

}  // namespace fa::sm80::schedule
