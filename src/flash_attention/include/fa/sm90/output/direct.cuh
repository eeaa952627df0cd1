// SPDX-License-Identifier: Apache-2.0
// The few rows of O that are used go from registers to where they belong.
#pragma once
#include <fa/ptx/memory.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90::output {

struct Direct {
  static constexpr bool kOwnBuffer = false;

  template <class Consumer>
  static __device__ void queries_read(Consumer& consumer) {
    consumer.release_q();
  }

  template <class Consumer, class Warp>
  static __device__ void store(Consumer&, const Warp& warp, const attn::RowEnds& ends) {
    using Config = typename Warp::Config;
    const ForwardKernelArgs& args = warp.args;
    warp.store_lse(ends);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = warp.lane_row(h);
      if (!warp.used(r)) continue;
      char* const row =
          static_cast<char*>(args.o) +
          (warp.sequence.q_batch * args.o_stride.batch + warp.head(r) * args.o_stride.head +
           (warp.sequence.q_first + warp.position(r)) * args.o_stride.seq) *
              kElementBytes;
#pragma unroll
      for (int j = 0; j < Config::kDHead / 8; ++j)
        if (const int column = 8 * j + 2 * (lane_id() % 4); column < args.d_v)
          ptx::st_global_4(row + column * kElementBytes,
                           Config::DType::pack(warp.o.v[0][j][2 * h], warp.o.v[0][j][2 * h + 1]));
    }
  }
};

}  // namespace fa::sm90::output
