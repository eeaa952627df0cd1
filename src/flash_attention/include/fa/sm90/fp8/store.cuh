// SPDX-License-Identifier: Apache-2.0
// The end of a tile: a warp stores its rows of O, and their log-sum-exp, from registers. By the order
// of V's columns (fp8/values) a lane has four neighbouring columns of a row, and stores them at once.
#pragma once
#include <fa/ptx/memory.cuh>
#include <fa/sm90/fp8/weights.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90::fp8 {

// The config of a warp's output: the accumulator of O may have more columns than O, for row sums.
template <class Config, int Columns>
struct Widened : Config {
  static constexpr int kDHead = Columns;
};

// `scale` is that of the maxima, `v_descale` the factor of V.
template <class Config, int Columns>
__device__ void store_rows(const WarpOutput<Widened<Config, Columns>>& warp,
                           attn::RowStats<16>& stats, float scale, float v_descale) {
  const float unshift = ptx::exp2(-(kShift + Config::Powers::kBias));  // the sum is not shifted
  const ForwardKernelArgs& args = warp.args;
#pragma unroll
  for (int h = 0; h < 2; ++h) stats.sum[0][h] *= unshift;
  attn::RowEnds ends(stats, scale);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = warp.lane_row(h);
    Config::Sinks::add(ends.row[h], args, warp.head(r));
    if (!warp.used(r)) continue;
    const float by = unshift * v_descale * ends.row[h].inverse();
    const i64 row = warp.sequence.q_batch * args.o_stride.batch +
                    warp.head(r) * args.o_stride.head +
                    (warp.sequence.q_first + warp.position(r)) * args.o_stride.seq;
    char* const to = ptx::computed_once(static_cast<char*>(args.o) +
                                        (row + 4 * (lane_id() % 4)) * kElementBytes);
#pragma unroll
    for (int d = 0; d < Config::kDHead / 16; ++d) {
      const Four x = Config::Values::template outputs<Config::kDHead>(warp.o, d, h);
      if (16 * d < args.d_v)
        ptx::st_global_8(to + 16 * d * kElementBytes, Config::DType::pack(x.v[0] * by, x.v[1] * by),
                         Config::DType::pack(x.v[2] * by, x.v[3] * by));
    }
  }
  warp.store_lse(ends);
}

}  // namespace fa::sm90::fp8
