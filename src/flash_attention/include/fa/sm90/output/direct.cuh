// SPDX-License-Identifier: Apache-2.0
// O is stored from registers. The next Q is loaded as soon as the last scores are computed.
#pragma once
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90::output {

struct Direct : OutsideQueries {
  static constexpr bool kOwnBuffer = false;

  template <class Consumer, class Warp>
  static __device__ void store(Consumer&, const Warp& warp, const attn::RowEnds& ends) {
    const ForwardKernelArgs& args = warp.args;
    warp.store_lse(ends);
    warp.store_chunks([&](int r) {
      const i64 row = warp.sequence.q_batch * args.o_stride.batch +
                      warp.head(r) * args.o_stride.head +
                      (warp.sequence.q_first + warp.position(r)) * args.o_stride.seq;
      return static_cast<char*>(args.o) + row * kElementBytes;
    });
  }
};

}  // namespace fa::sm90::output
