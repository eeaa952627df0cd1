// SPDX-License-Identifier: Apache-2.0
// O is staged where Q was; the next Q is loaded when the store has read it.
#pragma once
#include <fa/ptx/named_barrier.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90::output {

struct OverQueries {
  static constexpr bool kOwnBuffer = false;

  // The verbs of a consumer around its last read of Q and its store of O.
  template <class Consumer>
  static __device__ void queries_read(Consumer&) {}

  template <class Consumer>
  static __device__ u32 claim(Consumer& consumer) {
    // All four warps' products have read Q.
    ptx::named_barrier_sync(4 + consumer.warpgroup(), kWarpgroupSize);
    return consumer.q_tile();
  }

  template <class Consumer>
  static __device__ void stored(Consumer& consumer) {
    if (lane_id() == 0) ptx::tma_wait_read();  // this warp's rows may be overwritten
    consumer.release_q();
  }
};

}  // namespace fa::sm90::output
