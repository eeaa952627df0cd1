// SPDX-License-Identifier: Apache-2.0
// The contract of the slots that all families have: what a variant must provide.
#pragma once
#include <fa/attn/row_stats.cuh>
#include <fa/attn/sequence.cuh>

namespace fa::attn {

struct RowEnd;  // lse.cuh

template <class T>
concept DTypeSlot = requires(float x) {
  { T::pack(x, x) };
};

template <class T>
concept ExponentialSlot = requires(Accumulator<16, 16>& s, float x) {
  T::factor(x);
  T::scale(s, x);
  T::exp(x, T::offset(x, x), x);
};

template <class T>
concept ScoreSlot = requires(Accumulator<16, 16>& s, const ForwardKernelArgs& args) {
  T::change(s, args);
  T::scale(args);
};

template <class T>
concept MaskSlot = requires(const T& mask, int row, const attn::Sequence& sequence) {
  T::kHasStart;
  mask.first_key(row, sequence);
  mask.end_key(row, sequence);
};

template <class T>
concept SinksSlot = requires(RowEnd& end, const ForwardKernelArgs& args) { T::add(end, args, 0); };

template <class T>
concept LengthsSlot = requires(const ForwardKernelArgs& args) { T::sequence(args, 0); };

// Names the first of these slots of `Config` whose variant breaks its contract.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(DTypeSlot<typename Config::DType>, "DType: pack(lo, hi)");
  static_assert(ExponentialSlot<typename Config::Exponential>,
                "Exponential: factor, scale, offset, exp");
  static_assert(ScoreSlot<typename Config::Score>, "Score: change(s, args), scale(args)");
  static_assert(MaskSlot<typename Config::Mask>, "Mask: kHasStart, first_key, end_key");
  static_assert(SinksSlot<typename Config::Sinks>, "Sinks: add(end, args, head)");
  static_assert(LengthsSlot<typename Config::Lengths>, "Lengths: sequence(args, batch)");
  return true;
}

}  // namespace fa::attn
