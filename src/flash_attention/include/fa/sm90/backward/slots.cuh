// SPDX-License-Identifier: Apache-2.0
// The concepts of the slots of backward kernels: what a variant must provide.
#pragma once
#include <fa/attn/slots.cuh>
#include <fa/sm90/backward/products.cuh>
#include <fa/sm90/backward/tile.cuh>

namespace fa::sm90::backward {

using attn::Same;

struct StatsOfNobody {
  __device__ ptx::FloatPair operator()(int) const { return {}; }
};

template <class T, class Math>
concept DerivativeSlot = requires(typename T::template Kept<Math>& kept,
                                  typename Math::Scores& scores, typename Math::Pairs& pairs) {
  kept.keep(scores);
  kept.keep(pairs);
  T::template run<Math>(scores, kept, StatsOfNobody{});
  T::template convert<Math>(pairs, scores);
};

template <class T, class Math, class Score>
concept SlopesSlot =
    requires(typename T::template Kept<Math, Score>& kept, typename Math::Scores& scores) {
      kept.keep_slopes(scores);
      kept.multiply_slopes(scores);
    };

template <class T, class Config>
concept QueryGradientSlot =
    requires(typename T::template KeySide<Config, 0>& side,
             const typename Products<Config>::Pairs& ds, const BackwardKernelArgs& args) {
      { typename T::template KeySide<Config, 0>(args) };
      side.begin_tile(Mailbox{});
      side.hand_over(ds, 0);
      side.next_head();
    };

template <class T, class Config>
concept TileOrderSlot =
    requires(typename T::template Walk<Config>& walk, Tile& tile, const BackwardKernelArgs& args) {
      { typename T::template Walk<Config>(args) };
      { walk.next(tile) } -> Same<bool>;
      walk.finish();
    };

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
