// SPDX-License-Identifier: Apache-2.0
// O is staged where Q was; the next Q is loaded when the store has read it.
#pragma once
#include <fa/sm90/named_barriers.cuh>
#include <fa/sm90/staging.cuh>

namespace fa::sm90::output {

struct OverQueries {
  static constexpr bool kOwnBuffer = false;

  template <class Consumer>
  static __device__ void queries_read(Consumer&) {}

  template <class Consumer, class Warp>
  static __device__ void store(Consumer& consumer, const Warp& warp, const attn::RowEnds& ends) {
    warp.store_lse(ends);
    sync_warpgroup(consumer.warpgroup());  // all four warps' products have read Q
    stage_and_store(warp, consumer.q_tile(), consumer.o_map());
    if (lane_id() == 0) ptx::tma_wait_read();  // this warp's rows may be overwritten
    consumer.release_q();
  }
};

}  // namespace fa::sm90::output
