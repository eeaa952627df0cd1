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
  Strides q_stride, k_stride, v_stride, o_stride;
  int seq_len_q, seq_len_k;
  float softmax_scale;
};

}  // namespace fa
