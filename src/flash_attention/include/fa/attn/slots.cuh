// SPDX-License-Identifier: Apache-2.0
// The slots that all families have.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/attn/row_end.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/attn/softmax.cuh>
#include <fa/dtype.cuh>

namespace fa::attn {

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
