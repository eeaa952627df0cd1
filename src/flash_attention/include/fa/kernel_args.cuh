// SPDX-License-Identifier: Apache-2.0
// The run-time arguments of a forward kernel, passed as one __grid_constant__ parameter. The host
// mirror is kernel_args.py; every translation unit asserts that the two layouts agree.
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
  float* lse;  // [batch, heads, seq_len_q], natural logarithm; null when not asked for
  const float*
      sinks;  // [heads], one more score that every row of a head sees; null when there is none
  const int*
      cu_seqlens_q;  // [batch + 1], where the entries of a packed tensor start; null: not packed
  const int* cu_seqlens_k;
  const int* seqused_k;    // [batch], keys of an entry that count; null: all
  const int* block_table;  // [batch, pages of the longest], where the pages of keys lie
  float* o_parts;          // [parts, rows of a tile, d_v], of keys in splits
  float* lse_parts;        // [parts, rows of a tile]
  int* tile_counter;       // {tiles taken, CTAs done}, both zero between launches
  Strides q_stride, k_stride, v_stride, o_stride;
  i64 block_table_stride;
  i64 lse_batch_stride, lse_head_stride;
  int batch, heads, heads_per_kv;
  int seq_len_q, seq_len_k;       // the longest, where entries have their own
  int d_v;                        // columns of O
  int key_blocks;                 // of the longest keys, where they are visited in splits
  int split_blocks;               // of them, how many a CTA visits
  int window_left, window_right;  // keys before and after a query's own place that it sees
  float softmax_scale, softcap;
  int d_qk;  // columns of Q and K
};

}  // namespace fa
