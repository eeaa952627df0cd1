// SPDX-License-Identifier: Apache-2.0
// Online softmax of one 16-row tile, in steps that wgmma kernels order themselves. S becomes P while
// earlier products may still be adding to O, so O is rescaled later.
// The slot Rescale says when the maxima grow.
#pragma once
#include <fa/attn/softmax.cuh>

namespace fa::attn {

struct Masked {  // some keys are masked; a row may not have seen any key yet
  static constexpr bool kHidden = true;
};
struct Open {  // every row sees every key, and has seen a key before
  static constexpr bool kHidden = false;
};
struct FirstMasked : Masked {};  // the first block of its rows: O is still zero

template <int Dim>
__device__ void rescale_rows(Accumulator<16, Dim>& o, const RowStats<16>& stats) {
#pragma unroll
  for (int h = 0; h < 2; ++h) rescale_row(o, 0, h, stats.shrink[0][h]);
}

template <int Keys>
struct LaneMax {
  float of[2];

  __device__ explicit LaneMax(const Accumulator<16, Keys>& s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float max[2] = {s.v[0][0][2 * h], s.v[0][0][2 * h + 1]};
#pragma unroll
      for (int j = 1; j < Keys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) max[e] = fmaxf(max[e], s.v[0][j][2 * h + e]);
      of[h] = fmaxf(max[0], max[1]);
    }
  }
};

// The maximum of a row becomes `max`, which is not smaller, and its sum is rescaled. O must be rescaled
// by the same factor.
template <class Exponential>
__device__ void set_max(RowStats<16>& stats, int h, float max, float factor) {
  stats.shrink[0][h] =
      max == -kInfinity ? 1.f : Exponential::exp(stats.max[0][h] - max, 0.f, factor);
  stats.max[0][h] = max;
  stats.sum[0][h] *= stats.shrink[0][h];
}

// The maxima grow to cover `lanes`.
template <class Exponential, int Keys>
__device__ void raise_max(const LaneMax<Keys>& lanes, RowStats<16>& stats, float factor) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
    set_max<Exponential>(stats, h, fmaxf(stats.max[0][h], quad_max(lanes.of[h])), factor);
}

// The offsets, if no maximum is too large for them.
template <class Exponential>
__device__ void set_offsets(RowStats<16>& stats, float factor) {
#pragma unroll
  for (int h = 0; h < 2; ++h) stats.offset[0][h] = Exponential::offset(stats.max[0][h], factor);
}

template <int Keys>
struct ScoresOfNobody {
  __device__ void operator()(Accumulator<16, Keys>&) const {}
  __device__ void set_limits(const RowStats<16>&, float) const {}
  __device__ float limit(int, int, float largest) const { return largest; }
  __device__ bool see_weights(const Accumulator<16, Keys>&, const RowStats<16>&, float) const {
    return false;
  }
};

// try_stale_max: S becomes P with the old maxima and these `offsets`, if the variant supports that;
// `scores_again(s)` computes S again, and `max_score` sees P where nobody saw S. run: S becomes P if
// try_stale_max did not do it. Both set in `stats` whether the maxima grew. kStale: nobody sees S of an
// unmasked block.
template <class T, class Config, class Block>
concept RescalesBlock = requires(Block block, Accumulator<16, Config::kBC>& s, RowStats<16>& stats,
                                 Factor& factor, ScoresOfNobody<Config::kBC> again) {
  { T::kStale } -> Same<const bool&>;
  T::template try_stale_max<typename Config::Exponential, typename Config::DType>(
      block, s, stats, factor, again, again, OffsetsOfRows{});
  T::template run<typename Config::Exponential>(block, s, stats, factor);
};

template <class T, class Config>
concept RescaleSlot = RescalesBlock<T, Config, Masked> && RescalesBlock<T, Config, FirstMasked> &&
                      RescalesBlock<T, Config, Open>;

}  // namespace fa::attn

namespace fa::attn::rescale {

// Every key block updates the row maxima, and O is rescaled every time.
struct EveryBlock {
  static constexpr bool kStale = false;

  // P is never computed with the old maximum.
  template <class Exponential, class DType, class Block, int Keys, class Again, class MaxScore,
            class Offsets>
  static __device__ void try_stale_max(Block, Accumulator<16, Keys>&, RowStats<16>&, Factor&, Again,
                                       MaxScore&, const Offsets&) {}

  template <class Exponential, class Block, int Keys>
  static __device__ void run(Block, Accumulator<16, Keys>& s, RowStats<16>& stats, Factor& factor) {
    raise_max<Exponential>(LaneMax(s), stats, factor.exact);
    centre<Exponential>(s, stats, factor);
    exponentiate<Exponential>(s, stats, factor.exact);
    stats.grew = true;
  }
};

// The old maximum is kept until a score exceeds it by a factor of more than 2^Threshold. P is then at
// most 2^Threshold, and almost no block rescales O. The lanes of a quad exchange their maxima only if
// one of the warp's rows needs a new maximum.
template <int Threshold>
struct Lazy {
  static constexpr bool kStale = false;

  // P is never computed before the maximum is checked.
  template <class Exponential, class DType, class Block, int Keys, class Again, class MaxScore,
            class Offsets>
  static __device__ void try_stale_max(Block, Accumulator<16, Keys>&, RowStats<16>&, Factor&, Again,
                                       MaxScore&, const Offsets&) {}

  template <class Exponential, class Block, int Keys>
  static __device__ void run(Block, Accumulator<16, Keys>& s, RowStats<16>& stats, Factor& factor) {
    const LaneMax<Keys> lanes(s);
    const bool covered = (lanes.of[0] - stats.max[0][0]) * factor.stale <= Threshold &&
                         (lanes.of[1] - stats.max[0][1]) * factor.stale <= Threshold;  // not NaN
    stats.grew = __any_sync(~0u, !covered);
    set_offsets<Exponential>(stats, factor.stale);
    if (stats.grew) {
      raise_max<Exponential>(lanes, stats, factor.exact);
      centre<Exponential>(s, stats, factor);
    }
    exponentiate<Exponential>(s, stats, stats.grew ? factor.exact : factor.stale);
  }
};

// Unmasked blocks compute no maximum: P is computed with the old one, and the row sums show afterwards
// whether P overflows its type or is NaN. Only then are the scores computed again.
template <int Threshold>
struct StaleMax {
  static constexpr bool kStale = true;

  template <class Exponential, class DType, class Block, int Keys, class Again, class MaxScore,
            class Offsets>
  static __device__ void try_stale_max(Block, Accumulator<16, Keys>& s, RowStats<16>& stats,
                                       Factor& factor, Again scores_again, MaxScore& max_score,
                                       const Offsets& offsets) {
    if constexpr (!Block::kHidden) {
      RowStats<16> next = stats;
      next.sum[0][0] = next.sum[0][1] = 0.f;
      set_offsets<Exponential>(next, factor.stale);
      exponentiate<Exponential>(s, next, factor.stale, offsets);
      const bool fits =  // not NaN
          next.sum[0][0] <= max_score.limit(0, 0, DType::kLargestSum) &&
          next.sum[0][1] <= max_score.limit(0, 1, DType::kLargestSum);
      stats.grew = __any_sync(~0u, !fits);
      if (stats.grew) stats.grew = !max_score.see_weights(s, next, DType::kLargestSum);
      if (stats.grew) {
        scores_again(s);
        raise_max<Exponential>(LaneMax(s), stats, factor.exact);
        centre<Exponential>(s, stats, factor);
        max_score.set_limits(stats, DType::kLargestSum);
        exponentiate<Exponential>(s, stats, factor.exact);
      } else {
        stats.sum[0][0] += next.sum[0][0];
        stats.sum[0][1] += next.sum[0][1];
      }
    }
  }

  // In an unmasked block try_stale_max() has already made P, if need be with a new maximum.
  template <class Exponential, class Block, int Keys>
  static __device__ void run(Block block, Accumulator<16, Keys>& s, RowStats<16>& stats,
                             Factor& factor) {
    if constexpr (Block::kHidden)
      Lazy<Threshold>::template run<Exponential>(block, s, stats, factor);
  }
};

}  // namespace fa::attn::rescale
