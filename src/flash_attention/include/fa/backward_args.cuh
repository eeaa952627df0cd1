// SPDX-License-Identifier: Apache-2.0
// The run-time arguments of a backward kernel. backward_args.py mirrors them; every unit asserts that.
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
  int* tile_counter;  // {tiles taken, CTAs done}, zero at first
  Strides q_stride, k_stride, v_stride, o_stride, d_o_stride, dq_stride, dk_stride, dv_stride;
  int stat_rows;         // rows of a head in lse_log2, delta and dq_sum
  int total_q, total_k;  // rows of packed tensors, else zero
  // A part of the work, where parts share `ds`: some heads of k of all sequences, some of their keys.
  int part_head, part_heads, part_key, part_keys;
};

}  // namespace fa
