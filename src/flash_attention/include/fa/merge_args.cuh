// SPDX-License-Identifier: Apache-2.0
// The run-time arguments of the kernel that merges partial results. merge_args.py mirrors them; every
// unit asserts that.
#pragma once
#include <fa/core.cuh>

namespace fa {

// Results over the same queries and different keys: O and its log-sum-exp. The first part is apart.
struct MergeKernelArgs {
  const void* o;       // [batch, seq_len, heads, columns]
  const float* lse;    // the strides are those of a batch, a row and a head
  const void* o_rest;  // [parts - 1, batch, seq_len, heads, columns]
  const float* lse_rest;
  void* merged_o;
  float* merged_lse;
  Strides o_stride, lse_stride, o_rest_stride, lse_rest_stride, merged_o_stride, merged_lse_stride;
  i64 o_part_stride, lse_part_stride;
  int parts, rows;  // rows of all heads
  int seq_len, heads, columns;
};

}  // namespace fa
