// SPDX-License-Identifier: Apache-2.0
// The end of a row: the slot Sinks adds to the sum, the slot Normalise divides O by it. The slot MaxScore keeps
// the largest score of a head. Here the slots that all families have are checked.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/attn/softmax.cuh>
#include <fa/core.cuh>
#include <fa/dtype.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn {

// The end of a row: O / sum, and the log-sum-exp. A sink is a logit that is added to the sum only. A row
// that saw no key has output 0; its log-sum-exp is the sink, or -inf without one.
struct RowEnd {
  float sum, max;      // of exp(score - max), the largest score
  float shrink = 1.f;  // factor of O, which is relative to the maximum without the sink

  __device__ RowEnd(float sum_seen, float max_seen)
      : sum(sum_seen), max(sum_seen == 0.f ? -kInfinity : max_seen) {}

  __device__ void add_sink(float sink) {
    const float larger = fmaxf(max, sink);
    if (larger == -kInfinity) return;  // there is neither a key nor a sink
    shrink = sum == 0.f ? 0.f : ptx::exp2((max - larger) * kLog2e);
    sum = sum * shrink + ptx::exp2((sink - larger) * kLog2e);
    max = larger;
  }

  // The factor or divisor of O.
  __device__ float inverse() const { return sum == 0.f ? 0.f : shrink * ptx::reciprocal(sum); }
  __device__ float divisor() const { return sum == 0.f ? 1.f : sum * ptx::reciprocal(shrink); }
  __device__ float lse() const { return sum == 0.f ? -kInfinity : max + ptx::log(sum); }
};

struct RowEnds {
  RowEnd row[2];  // l / 4 + 8 h

  __device__ RowEnds(const RowStats<16>& stats, float scale)
      : row{{quad_sum(stats.sum[0][0]), stats.max[0][0] * scale},
            {quad_sum(stats.sum[0][1]), stats.max[0][1] * scale}} {}

  // `factor` is that of the values.
  template <int Dim>
  __device__ void normalise(Accumulator<16, Dim>& o, float factor = 1.f) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) rescale_row(o, 0, h, row[h].inverse() * factor);
  }
};

template <class T>
concept SinksSlot = requires(RowEnd& end, const CallArgs& args) { T::add(end, args, 0); };

template <class T>
concept NormaliseSlot =
    requires(Accumulator<16, 16>& o, int i, float sum) { T::row(o, i, i, sum); };

// change: `change()`, which changes S, and `hide()`, which hides scores of keys that a row does not see. see: scores
// that were not seen by change. set_limits: after the offsets have changed. limit, see_weights: of P of a block that
// nobody saw, and its statistics.
template <class T, class Args, class Of = typename T::template Of<16, Args, true>>
concept MaxScoreSlot = requires(Of& of, Accumulator<16, 16>& s, const Args& args,
                                const RowStats<16>& block, bool (&used)(int), void (&hide)()) {
  { Of(args) };
  of.begin(0, used);
  of.template change<false>(s, hide, hide);
  of.see(s);
  of.set_limits(block, 1.f);
  { of.limit(0, 0, 1.f) } -> Same<float>;
  { of.see_weights(s, block, 1.f) } -> Same<bool>;
};

}  // namespace fa::attn

namespace fa::attn::max_score {

// Nobody asks for it.
struct None {
  template <int Rows, class Args, bool /*Stale*/>
  struct Of {
    __device__ explicit Of(const Args&) {}
    template <class Used>
    __device__ void begin(int /*head*/, Used) {}
    template <bool /*Unseen*/, int Cols, class Change, class Hide>
    __device__ void change(Accumulator<Rows, Cols>&, Change change, Hide hide) {
      change();
      hide();
    }
    template <int Cols>
    __device__ void see(const Accumulator<Rows, Cols>&) {}
    __device__ void set_limits(const RowStats<Rows>&, float) {}
    __device__ float limit(int, int, float largest) const { return largest; }
    template <int Cols>
    __device__ bool see_weights(const Accumulator<Rows, Cols>&, const RowStats<Rows>&, float) {
      return false;
    }
  };
};

}  // namespace fa::attn::max_score

namespace fa::attn::sinks {

// There are no sinks: the softmax denominator is the sum over the keys.
struct None {
  static __device__ void add(RowEnd&, const CallArgs&, int /*head*/) {}
};

// A logit per head is added to the softmax denominator only.
struct PerHead {
  static __device__ void add(RowEnd& end, const CallArgs& args, int head) {
    end.add_sink(args.sinks[head]);
  }
};

}  // namespace fa::attn::sinks

namespace fa::attn::normalise {

// O / sum: one division per element.
struct Divide {
  template <int Rows, int Dim>
  static __device__ void row(Accumulator<Rows, Dim>& o, int i, int h, float sum) {
#pragma unroll
    for (int j = 0; j < Dim / 8; ++j)
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; ++e) o.v[i][j][e] = ptx::divide(o.v[i][j][e], sum);
  }
};

// O times 1 / sum: one reciprocal per row, one multiplication per element.
struct Reciprocal {
  template <int Rows, int Dim>
  static __device__ void row(Accumulator<Rows, Dim>& o, int i, int h, float sum) {
    rescale_row(o, i, h, ptx::reciprocal(sum));
  }
};

}  // namespace fa::attn::normalise

namespace fa::attn {

// Fails to compile at the first of these slots of `Config` whose variant does not satisfy its concept.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(DTypeSlot<typename Config::DType>,
                "DType: kLargestSum, kHasFloatRange, pack(lo, hi)");
  static_assert(ExponentialSlot<typename Config::Exponential>,
                "Exponential: factor, scale, offset, precise, score, exp");
  static_assert(ScoreSlot<typename Config::Score>, "Score: change(s, args), scale(args), slope(s)");
  static_assert(MaskSlot<typename Config::Mask>,
                "Mask: (args), kHasStart, kSeesAll, first_key, end_key, first_query, end_query");
  static_assert(SinksSlot<typename Config::Sinks>, "Sinks: add(end, args, head)");
  static_assert(LengthsSlot<typename Config::Lengths>,
                "Lengths: kPerBatch, kPackedQueries, kLeastQueries, q_len(args, batch), "
                "sequence(args, batch)");
  static_assert(DropoutSlot<typename Config::Dropout>,
                "Dropout: (args), Dropped<RowsOf, Tiles>, scale(args), begin_head(head_of_all), "
                "next_head(), draw(dropped, row, column, args)");
  return true;
}

}  // namespace fa::attn
