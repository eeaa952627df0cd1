// SPDX-License-Identifier: Apache-2.0
// O has its own buffer: the next Q is loaded as soon as the last scores are computed, and the
// store is waited for only before the next one.
#pragma once
#include <fa/sm90/staging.cuh>

namespace fa::sm90::output {

struct OwnBuffer : OutsideQueries {
  static constexpr bool kOwnBuffer = true;

  template <class Consumer, class Warp>
  static __device__ void store(Consumer& consumer, const Warp& warp, const attn::RowEnds& ends) {
    warp.store_lse(ends);
    if (lane_id() == 0) ptx::tma_wait_read();  // this warp's rows of the previous tile were read
    __syncwarp();                              // and all lanes may write over them
    stage_and_store(warp, consumer.own_o_tile(), consumer.o_map());
  }
};

}  // namespace fa::sm90::output
