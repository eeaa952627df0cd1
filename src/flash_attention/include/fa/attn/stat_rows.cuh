// SPDX-License-Identifier: Apache-2.0
// The rows of lse_log2, delta and dq_sum. Every sequence starts at a multiple of 128 rows and has its
// length, rounded up to 128, for itself, so that blocks of rows need no bounds.
#pragma once
#include <fa/attn/softmax.cuh>
#include <fa/core.cuh>

namespace fa::attn {

inline constexpr int kStatBlock = 128;
inline constexpr int kSemaphoreRows = 64;  // rows that share a counter in dq_semaphore

__device__ inline int in_stat_blocks(int rows) {
  return (rows + kStatBlock - 1) / kStatBlock * kStatBlock;
}

// The first row of a sequence.
__device__ inline int first_stat_row(const CallArgs& args, int batch) {
  if (!args.cu_seqlens_q) return batch * in_stat_blocks(args.seq_len_q);
  return args.cu_seqlens_q[batch] / kStatBlock * kStatBlock + batch * kStatBlock;
}

// Log-sum-exps whose rounding shows in P = exp2(s - lse): at 2^14 float32 leaves them 2^-10, at 2^27 eight.
// P of a row's largest score could be any power of two. Such a log-sum-exp is lowered by what rounding may
// have raised it, so that this P is 1 or more, and main kernels make it 1.
inline constexpr float kLargeLse = 0x1p14f;  // to base 2
// Half an ulp each of lse, of the scale, of both of their products with log2(e), and of the score.
inline constexpr float kLseRounding = 0x1p-21f;

__device__ inline float lowered_if_large(float lse_log2) {
  const float size = fabsf(lse_log2);
  return size < kLargeLse ? lse_log2 : lse_log2 - size * kLseRounding;
}

}  // namespace fa::attn
