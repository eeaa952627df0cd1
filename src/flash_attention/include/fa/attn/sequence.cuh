// SPDX-License-Identifier: Apache-2.0
// One sequence: the number of its queries and keys, the rows before it in their tensors, and its
// index along their batch dimensions.
#pragma once
#include <fa/call_args.cuh>

namespace fa::attn {

struct Sequence {
  int q_len, k_len;
  int q_first, k_first;
  int q_batch, k_batch;
};

}  // namespace fa::attn
