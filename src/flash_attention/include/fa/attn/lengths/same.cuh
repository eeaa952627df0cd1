// SPDX-License-Identifier: Apache-2.0
// All sequences are as long as their tensors.
#pragma once
#include <fa/attn/sequence.cuh>

namespace fa::attn::lengths {

struct Same {
  static constexpr bool kPerBatch = false;
  static constexpr bool kPackedQueries = false;

  static __device__ int q_len(const CallArgs& args, int /*batch*/) { return args.seq_len_q; }
  static __device__ Sequence sequence(const CallArgs& args, int batch) {
    return {args.seq_len_q, args.seq_len_k, 0, 0, batch, batch};
  }
};

}  // namespace fa::attn::lengths
