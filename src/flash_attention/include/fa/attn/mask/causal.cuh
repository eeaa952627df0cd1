// SPDX-License-Identifier: Apache-2.0
// The last query sees all keys, the query before it one less, and so on: aligned to the bottom right.
#pragma once
#include <fa/attn/sequence.cuh>

namespace fa::attn::mask {

struct Causal {
  static constexpr bool kHasStart = false;

  __device__ explicit Causal(const CallArgs&) {}
  __device__ int first_key(int /*row*/, const Sequence&) const { return 0; }
  __device__ int end_key(int row, const Sequence& sequence) const {
    return min(max(row + 1 + sequence.k_len - sequence.q_len, 0), sequence.k_len);
  }
  __device__ int first_query(int key, const Sequence& sequence) const {
    return min(max(key - sequence.k_len + sequence.q_len, 0), sequence.q_len);
  }
  __device__ int end_query(int /*key*/, const Sequence& sequence) const { return sequence.q_len; }
};

}  // namespace fa::attn::mask
