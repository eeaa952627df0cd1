// SPDX-License-Identifier: Apache-2.0
// The run-time arguments of a forward kernel. forward_args.py mirrors them; every unit asserts that.
#pragma once
#include <fa/core.cuh>

namespace fa {

// Element strides of a [batch, heads of k, blocks of keys] tensor of descale factors; zeros if a factor is
// for all.
struct DescaleStrides {
  i64 batch, head, block;
};

struct ForwardKernelArgs : CallArgs {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;              // natural logarithm; null if not requested
  const int* block_table;  // [batch, pages of the longest sequence], the pages of keys
  float* o_partial;        // [parts, rows of a tile, d_v], split-KV partial results
  float* lse_partial;      // [parts, rows of a tile], their log-sum-exp
  int* tile_counter;       // {tiles taken, CTAs done}, or parts stored of every tile; zero at first
  Strides q_stride, k_stride, v_stride, o_stride;
  i64 block_table_stride;
  int key_blocks;          // of the longest sequence, with split-KV
  int split_blocks;        // key blocks per CTA, with split-KV
  int pages;               // of a paged KV cache
  const float* q_descale;  // the factors of tensors of 8 bits; null for those of 16
  const float* k_descale;
  const float* v_descale;
  DescaleStrides q_descale_stride, k_descale_stride, v_descale_stride;
  const i64* rng_state;  // {seed, offset} of dropout; null if there is none
  u32 dropout_zeros[8];  // of each bit of the threshold: all ones if it is 0
  float dropout_scale;   // of the weights that are kept
  float* max_score;      // [heads], -inf at first; null if not requested
};

}  // namespace fa
