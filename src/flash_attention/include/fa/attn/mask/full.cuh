// SPDX-License-Identifier: Apache-2.0
// Every query sees every key.
#pragma once
#include <fa/attn/sequence.cuh>

namespace fa::attn::mask {

struct Full {
  static constexpr bool kHasStart = false;

  __device__ explicit Full(const CallArgs&) {}
  __device__ int first_key(int /*row*/, const Sequence&) const { return 0; }
  __device__ int end_key(int /*row*/, const Sequence& sequence) const { return sequence.k_len; }
  __device__ int first_query(int /*key*/, const Sequence&) const { return 0; }
  __device__ int end_query(int /*key*/, const Sequence& sequence) const { return sequence.q_len; }
};

}  // namespace fa::attn::mask
