// SPDX-License-Identifier: Apache-2.0
// The run-time arguments of a backward kernel, and which rows of its sums a sequence has. backward_args.py
// mirrors the arguments; every unit asserts that.
#pragma once
#include <fa/core.cuh>

namespace fa {

struct BackwardKernelArgs : CallArgs {
  const void* q;
  const void* k;
  const void* v;
  const void* o;
  const void* d_o;  // the gradient of O
  void* dq;         // gradients that are not wanted are null
  void* dk;
  void* dv;
  const float* lse;
  const float* dlse;  // the gradient of lse; null if it is zero
  float* dsinks;
  float* lse_log2;    // [heads, stat_rows], base-2 logarithm, +inf for rows that see no key
  float* delta;       // [heads, stat_rows], rowsum(dO O) - dlse
  float* dq_sum;      // [heads, stat_rows, d_head], sums of dS K in the order of SumOrder
  int* dq_semaphore;  // [heads, stat_rows / 64], tiles that have added their share to dq_sum
  void* ds;           // dS of a part of the work, in 16 bits
  float* dk_sum;      // [key_sums, heads of k, key_rows, d_head], in the order of SumOrder
  float* dv_sum;
  int* tile_counter;  // {tiles taken, CTAs done}, zero at first
  Strides q_stride, k_stride, v_stride, o_stride, d_o_stride, dq_stride, dk_stride, dv_stride;
  int stat_rows;         // rows of a head in lse_log2, delta and dq_sum
  int key_rows;          // rows of a head in dk_sum and dv_sum
  int total_q, total_k;  // rows of packed tensors, else zero
  // A part of the work, where parts share `ds`: some heads of k of all sequences, some of their keys.
  int part_head, part_heads, part_key, part_keys;
  int head_splits;       // into which the heads of q that share a head of k are split
  int key_sums;          // sums of dK and of dV: one that all splits add to, or one for each split
  const i64* rng_state;  // {seed, offset} of dropout; null if there is none
  u32 dropout_zeros[8];  // of each bit of the threshold: all ones if it is 0
  float dropout_scale;   // of the weights that are kept
};

}  // namespace fa

namespace fa::attn {

// The rows of lse_log2, delta and dq_sum, and in the same way those of dk_sum and dv_sum. Every sequence
// starts at a multiple of 128 rows and has its length, rounded up to 128, for itself, so that blocks of rows
// need no bounds.
inline constexpr int kStatBlock = 128;
inline constexpr int kSemaphoreRows = 64;  // rows that share a counter in dq_semaphore

__device__ inline int in_stat_blocks(int rows) {
  return (rows + kStatBlock - 1) / kStatBlock * kStatBlock;
}

__device__ inline int first_padded_row(const int* cu_seqlens, int longest, int batch) {
  if (!cu_seqlens) return batch * in_stat_blocks(longest);
  return cu_seqlens[batch] / kStatBlock * kStatBlock + batch * kStatBlock;
}
// The first row of the queries of a sequence, and of its keys.
__device__ inline int first_stat_row(const CallArgs& args, int batch) {
  return first_padded_row(args.cu_seqlens_q, args.seq_len_q, batch);
}
__device__ inline int first_key_row(const CallArgs& args, int batch) {
  return first_padded_row(args.cu_seqlens_k, args.seq_len_k, batch);
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
