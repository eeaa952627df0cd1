// SPDX-License-Identifier: Apache-2.0
// O has a buffer of its own: the next Q is loaded as soon as the last scores are computed, and the
// store is waited for only before the next one.
#pragma once
#include <fa/ptx/tma.cuh>

namespace fa::sm90::output {

struct OwnBuffer {
  static constexpr bool kOwnBuffer = true;

  template <class Consumer>
  static __device__ void queries_read(Consumer& consumer) {
    consumer.release_q();
  }

  template <class Consumer>
  static __device__ u32 claim(Consumer& consumer) {
    if (lane_id() == 0) ptx::tma_wait_read();  // the previous tile's rows of this warp have left
    __syncwarp();
    return consumer.own_o_tile();
  }

  template <class Consumer>
  static __device__ void stored(Consumer&) {}
};

}  // namespace fa::sm90::output
