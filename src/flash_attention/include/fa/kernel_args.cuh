// SPDX-License-Identifier: Apache-2.0
// The run-time arguments of a forward kernel, passed as one __grid_constant__ parameter. The host
// mirror is forward_args.py; every translation unit asserts that the two layouts agree.
#pragma once
#include <fa/core.cuh>

namespace fa {

// Element strides of a [batch, seq, heads, d_head] tensor; d_head is contiguous.
struct Strides {
  i64 batch, seq, head;
};

struct ForwardKernelArgs {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;  // [batch, heads, seq_len_q], natural logarithm; null if not requested
  const float*
      sinks;  // [heads], a logit that is added to the softmax denominator; null if there is none
  const int* cu_seqlens_q;  // [batch + 1], where packed sequences start; null if not packed
  const int* cu_seqlens_k;
  const int* seqused_k;    // [batch], used keys of a sequence; null: all
  const int* block_table;  // [batch, pages of the longest sequence], the pages of keys
  float* o_parts;          // [parts, rows of a tile, d_v], split-KV partial results
  float* lse_parts;        // [parts, rows of a tile], their log-sum-exp
  int* tile_counter;       // {tiles taken, CTAs done}, both zero between launches
  Strides q_stride, k_stride, v_stride, o_stride;
  i64 block_table_stride;
  i64 lse_batch_stride, lse_head_stride;
  int batch, heads, heads_per_kv;
  int seq_len_q, seq_len_k;       // of the longest sequence
  int d_v;                        // columns of O
  int key_blocks;                 // of the longest sequence, with split-KV
  int split_blocks;               // key blocks per CTA, with split-KV
  int window_left, window_right;  // keys that a query sees before and after its own
  float softmax_scale, softcap;
  int d_qk;  // columns of Q and K
};

}  // namespace fa
