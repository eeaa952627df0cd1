// SPDX-License-Identifier: Apache-2.0
// One sequence: the number of its queries and keys, and where they start in their tensors.
#pragma once
#include <fa/kernel_args.cuh>

namespace fa::attn {

struct Sequence {
  int q_len, k_len;
  int q_first, k_first;  // rows before it in the tensor
  int q_batch, k_batch;  // index along the tensor's batch dimension
};

}  // namespace fa::attn
