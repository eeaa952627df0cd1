// SPDX-License-Identifier: Apache-2.0
// Every query sees every key.
#pragma once

namespace fa::attn::mask {

struct Full {
  static __device__ int visible_keys(int /*row*/, int /*seq_len_q*/, int seq_len_k) {
    return seq_len_k;
  }
};

}  // namespace fa::attn::mask
