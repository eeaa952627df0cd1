// SPDX-License-Identifier: Apache-2.0
// The concepts of the slots that all families have: what a variant must provide.
#pragma once
#include <fa/attn/row_stats.cuh>
#include <fa/attn/sequence.cuh>

namespace fa::attn {

struct RowEnd;  // lse.cuh

template <class A, class B>
inline constexpr bool kSame = false;
template <class A>
inline constexpr bool kSame<A, A> = true;
template <class A, class B>
concept Same = kSame<A, B>;

template <class T>
concept DTypeSlot = requires(float x) {
  { T::kLargestSum } -> Same<const float&>;
  { T::pack(x, x) } -> Same<u32>;
};

template <class T>
concept ExponentialSlot = requires(Accumulator<16, 16>& s, float x) {
  { T::factor(x) } -> Same<float>;
  T::scale(s, x);
  { T::offset(x, x) } -> Same<float>;
  { T::precise(x) } -> Same<bool>;
  { T::score(x, x) } -> Same<float>;
  { T::exp(x, x, x) } -> Same<float>;
};

template <class T>
concept ScoreSlot = requires(Accumulator<16, 16>& s, const CallArgs& args) {
  T::change(s, args);
  { T::scale(args) } -> Same<float>;
  { T::slope(0.f) } -> Same<float>;
};

template <class T>
concept MaskSlot =
    requires(const T& mask, int row, const Sequence& sequence, const CallArgs& args) {
      T(args);
      { T::kHasStart } -> Same<const bool&>;
      { mask.first_key(row, sequence) } -> Same<int>;
      { mask.end_key(row, sequence) } -> Same<int>;
      { mask.first_query(row, sequence) } -> Same<int>;
      { mask.end_query(row, sequence) } -> Same<int>;
    };

template <class T>
concept SinksSlot = requires(RowEnd& end, const CallArgs& args) { T::add(end, args, 0); };

template <class T>
concept LengthsSlot = requires(const CallArgs& args, int batch) {
  { T::kPerBatch } -> Same<const bool&>;
  { T::kPackedQueries } -> Same<const bool&>;
  { T::q_len(args, batch) } -> Same<int>;
  { T::sequence(args, batch) } -> Same<Sequence>;
};

// Fails to compile at the first of these slots of `Config` whose variant does not satisfy its concept.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(DTypeSlot<typename Config::DType>, "DType: kLargestSum, pack(lo, hi)");
  static_assert(ExponentialSlot<typename Config::Exponential>,
                "Exponential: factor, scale, offset, precise, score, exp");
  static_assert(ScoreSlot<typename Config::Score>, "Score: change(s, args), scale(args), slope(s)");
  static_assert(MaskSlot<typename Config::Mask>,
                "Mask: (args), kHasStart, first_key, end_key, first_query, end_query");
  static_assert(SinksSlot<typename Config::Sinks>, "Sinks: add(end, args, head)");
  static_assert(LengthsSlot<typename Config::Lengths>,
                "Lengths: kPerBatch, kPackedQueries, q_len(args, batch), sequence(args, batch)");
  return true;
}

}  // namespace fa::attn
