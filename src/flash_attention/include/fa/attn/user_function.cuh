// SPDX-License-Identifier: Apache-2.0
// The slot Function: a user's score function and mask function. A score function changes scaled scores, and a
// mask function says which of the keys that the slot Mask shows a query are seen.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/core.cuh>

namespace fa::attn {

// Where 16 rows of scores are: their sequence, the head of their tile, and the first query and key. A function
// counts queries `ahead` places further than the tensor of q does.
struct Place {
  int batch, head;
  int query, key;
  int ahead;
};

template <class T>
concept FunctionSlot = requires {
  { T::kScores } -> Same<const bool&>;
  { T::kMasks } -> Same<const bool&>;
  { T::kSlopes } -> Same<const bool&>;
  { T::kListed } -> Same<const bool&>;
};

// The factor of the scores that the softmax sees: those of a score function have theirs already.
template <class Config, class Args>
__device__ float score_scale(const Args& args) {
  return Config::Function::kScores ? 1.f : Config::Score::scale(args);
}

}  // namespace fa::attn

namespace fa::attn::user_function {

// Scores and masks are the kernel's own.
struct None {
  static constexpr bool kScores = false;
  static constexpr bool kMasks = false;
  static constexpr bool kSlopes = false;  // the derivatives of its scores differ from 1
  static constexpr bool kListed = false;  // tiles visit the blocks of lists

  template <class Args>
  static __device__ int ahead(const Args&, const Sequence&) {
    return 0;
  }
  template <RowsOf Side, class Rows, class Scores, class Args>
  static __device__ void change(Scores&, float /*scale*/, const Args&, const Place&) {}
  template <RowsOf Side, class Rows, class Scores, class Args>
  static __device__ void hide(Scores&, float /*hidden*/, const Args&, const Place&) {}
  template <class Scores, class Args>
  static __device__ void slopes(Scores&, const Scores&, float /*scale*/, const Args&,
                                const Place&) {}
};

}  // namespace fa::attn::user_function
