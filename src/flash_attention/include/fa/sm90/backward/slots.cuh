// SPDX-License-Identifier: Apache-2.0
// The slots of backward kernels.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/sm90/backward/derivative.cuh>
#include <fa/sm90/backward/products.cuh>
#include <fa/sm90/backward/tile_order.cuh>

namespace fa::sm90::backward {

// Fails to compile at the first slot whose variant does not satisfy its concept.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(attn::MaskSlot<typename Config::Mask>,
                "Mask: (args), kHasStart, first_key, end_key, first_query, end_query");
  static_assert(attn::LengthsSlot<typename Config::Lengths>,
                "Lengths: kPerBatch, kPackedQueries, q_len(args, batch), sequence(args, batch)");
  static_assert(attn::ScoreSlot<typename Config::Score>,
                "Score: change(s, args), scale(args), slope(s)");
  static_assert(SlopesSlot<typename Config::Slopes, Products<Config>, typename Config::Score>,
                "Slopes: Kept<Math, Score> with keep_slopes(scores) and multiply_slopes(scores)");
  static_assert(DerivativeSlot<typename Config::Derivative, Products<Config>>,
                "Derivative: Kept<Math> with keep(scores) and keep(pairs), run<Math>(scores, kept, "
                "deltas), convert<Math>(pairs, scores)");
  static_assert(TileOrderSlot<typename Config::TileOrder, Config>,
                "TileOrder: Walk<Config>(args) with next(tile), finish()");
  return true;
}

}  // namespace fa::sm90::backward
