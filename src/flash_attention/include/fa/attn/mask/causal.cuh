// SPDX-License-Identifier: Apache-2.0
// The last query sees every key, the one before it one less, and so on: aligned to the bottom right.
#pragma once

namespace fa::attn::mask {

struct Causal {
  static __device__ int visible_keys(int row, int seq_len_q, int seq_len_k) {
    return min(max(row + 1 + seq_len_k - seq_len_q, 0), seq_len_k);
  }
};

}  // namespace fa::attn::mask
