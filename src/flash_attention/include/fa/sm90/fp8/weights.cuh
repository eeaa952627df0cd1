// SPDX-License-Identifier: Apache-2.0
// The softmax of a block: S becomes P in e4m3, the A operand of O += P V. The weight of a row's maximum is
// 2^kShift, so that small weights keep their bits, and weights may grow to 2^kLimit before the maximum is
// raised. Blocks without a mask compute no maximum: P is computed with the old one, and its bytes show
// whether a weight grew too large or is NaN. The scores are still in their registers then.
#pragma once
#include <fa/attn/rescale.cuh>
#include <fa/attn/softmax.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/fp8/value_tile.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90::fp8 {

inline constexpr int kShift = 5, kLimit = 8;

template <int Keys>
struct Weights {
  u32 step[Keys / kStepKeys][4];  // 32 keys of row l / 4, then of row l / 4 + 8, in halves
};

// P = 2^(factor s - offset), and its sums. Returns whether a weight is 2^kLimit or more, or NaN.
template <class Config>
__device__ bool exponentiate(const Accumulator<16, Config::kBC>& s, Weights<Config::kBC>& p,
                             attn::RowStats<16>& stats, float factor) {
  using Powers = typename Config::Powers;
  static_assert(kLimit == 8, "what Powers check for");
  typename Powers::Overflow overflow;
  float sum[2] = {};
#pragma unroll
  for (int n = 0; n < Config::kBC / 16; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Four scores = Config::Values::scores(s, n, h);
      p.step[n / 2][n % 2 * 2 + h] = Powers::template weights<typename Config::Sums>(
          n, scores.v, stats.offset[0][h], factor, sum[h], overflow);
    }
  stats.sum[0][0] += sum[0];
  stats.sum[0][1] += sum[1];
  return overflow.large();
}

// The maxima cover S, and S, the sums and the offsets are relative to them.
template <int Keys>
__device__ void raise(const attn::LaneMax<Keys>& lanes, Accumulator<16, Keys>& s,
                      attn::RowStats<16>& stats, attn::Factor& factor) {
  using Exponential = attn::exponential::FusedExp2;
  attn::raise_max<Exponential>(lanes, stats, factor.exact);
  attn::centre<Exponential>(s, stats, factor);
  stats.offset[0][0] -= kShift;
  stats.offset[0][1] -= kShift;
  stats.grew = true;
}

__device__ inline void keep_max(attn::RowStats<16>& stats, float factor) {
  attn::set_offsets<attn::exponential::FusedExp2>(stats, factor);
  stats.offset[0][0] -= kShift;
  stats.offset[0][1] -= kShift;
  stats.grew = false;
}

template <class Config, int Keys>
__device__ void weigh(attn::Masked, Accumulator<16, Keys>& s, Weights<Keys>& p,
                      attn::RowStats<16>& stats, attn::Factor& factor) {
  constexpr float kMargin = kLimit - kShift - 0.25f;  // below kLimit after any rounding
  const attn::LaneMax<Keys> lanes(s);
  const bool covered = (lanes.of[0] - stats.max[0][0]) * factor.stale <= kMargin &&
                       (lanes.of[1] - stats.max[0][1]) * factor.stale <= kMargin;  // not NaN
  keep_max(stats, factor.stale);
  if (__any_sync(~0u, !covered)) raise(lanes, s, stats, factor);
  exponentiate<Config>(s, p, stats, stats.grew ? factor.exact : factor.stale);
}

template <class Config, int Keys>
__device__ void weigh(attn::Open, Accumulator<16, Keys>& s, Weights<Keys>& p,
                      attn::RowStats<16>& stats, attn::Factor& factor) {
  const float before[2] = {stats.sum[0][0], stats.sum[0][1]};
  keep_max(stats, factor.stale);
  if (!__any_sync(~0u, exponentiate<Config>(s, p, stats, factor.stale))) return;
  stats.sum[0][0] = before[0];
  stats.sum[0][1] = before[1];
  raise(attn::LaneMax<Keys>(s), s, stats, factor);
  exponentiate<Config>(s, p, stats, factor.exact);
}

// The key blocks of a tile, from the last to the first. P V of a block belongs to the step of the next
// one, so the first block has only scores, and after the last step one product is left.
template <class Schedule, class Consumer>
__device__ void visit_key_blocks(Consumer& c) {
  if (!c.has_block()) {
    c.queries_read();
    return;
  }
  c.wait_k();  // K has arrived
  c.ping_pong_wait();
  c.issue_scores(c.s(), c.k());   // S = Q K^T
  c.template wait_products<0>();  // S is complete
  c.release_k();
  c.mask(c.s(), attn::Masked{});
  c.weigh(c.p(), c.s(), attn::Masked{});
  c.next_block();
#pragma unroll 1
  while (c.near_end()) Schedule::step(c, attn::Masked{});
#pragma unroll 1
  while (c.open()) Schedule::step(c, attn::Open{});
#pragma unroll 1
  while (c.near_start()) Schedule::step(c, attn::Masked{});
  c.queries_read();  // the last scores are computed
  c.wait_v();        // V of the last block has arrived
  c.ping_pong_wait();
  c.issue_accumulate(c.o(), c.p(), c.v());  // O += P V
  c.template wait_products<0>();            // O is complete, V was read
  c.release_v();
  c.take_sums(c.o());
}

// The end of a tile: a warp stores its rows of O, and their log-sum-exp, from registers. By the order
// of V's columns (fp8/values) a lane has four neighbouring columns of a row, and stores them at once.

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
