// SPDX-License-Identifier: Apache-2.0
// The rows of lse_log2, delta and dq_sum. Every sequence starts at a multiple of 128 rows and has its
// length, rounded up to 128, for itself, so that blocks of rows need no bounds.
#pragma once
#include <fa/call_args.cuh>

namespace fa::attn {

inline constexpr int kStatBlock = 128;
inline constexpr int kTurnRows = 64;  // rows that share a counter in dq_turn

__device__ inline int in_stat_blocks(int rows) {
  return (rows + kStatBlock - 1) / kStatBlock * kStatBlock;
}

// The first row of a sequence.
__device__ inline int first_stat_row(const CallArgs& args, int batch) {
  if (!args.cu_seqlens_q) return batch * in_stat_blocks(args.seq_len_q);
  return args.cu_seqlens_q[batch] / kStatBlock * kStatBlock + batch * kStatBlock;
}

}  // namespace fa::attn
