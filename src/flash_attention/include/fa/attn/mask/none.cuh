// SPDX-License-Identifier: Apache-2.0
// Every query sees every key. A mask says how many key blocks a query block visits, and hides
// scores of the tile whose first element is (row, col).
#pragma once
#include <fa/core.cuh>

namespace fa::attn::mask {

struct None {
  template <int BlockKeys>
  static __device__ int num_key_blocks(int seq_len_k) {
    return seq_len_k / BlockKeys;
  }

  template <int Rows, int Cols>
  static __device__ void hide(Accumulator<Rows, Cols>&, int /*row*/, int /*col*/) {}
};

}  // namespace fa::attn::mask
