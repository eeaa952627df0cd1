// SPDX-License-Identifier: Apache-2.0
// The few rows of O that are used are stored directly from registers.
#pragma once
#include <fa/ptx/memory.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90::output {

struct Direct : OutsideQueries {
  static constexpr bool kOwnBuffer = false;

  template <class Consumer, class Warp>
  static __device__ void store(Consumer&, const Warp& warp, const attn::RowEnds& ends) {
    const ForwardKernelArgs& args = warp.args;
    warp.store_lse(ends);
    warp.store_pairs([&](int r, int /*h*/) {
      const i64 row = warp.sequence.q_batch * args.o_stride.batch +
                      warp.head(r) * args.o_stride.head +
                      (warp.sequence.q_first + warp.position(r)) * args.o_stride.seq;
      char* const to = ptx::computed_once(static_cast<char*>(args.o) + row * kElementBytes);
      return [to](int column, float x, float y) {
        ptx::st_global_4(to + column * kElementBytes, Warp::Config::DType::pack(x, y));
      };
    });
  }
};

}  // namespace fa::sm90::output
