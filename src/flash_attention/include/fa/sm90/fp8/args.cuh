// SPDX-License-Identifier: Apache-2.0
// The run-time arguments of an FP8 forward kernel. fp8/args.py mirrors them; every unit asserts that.
#pragma once
#include <fa/forward_args.cuh>

namespace fa {

// Element strides of a [batch, heads of k] tensor of descale factors; zeros if there is one factor.
struct DescaleStrides {
  i64 batch, head;
};

struct Fp8KernelArgs : ForwardKernelArgs {
  const float* q_descale;
  const float* k_descale;
  const float* v_descale;
  void* v_tiles;  // V transposed, tile by tile (fp8/value_tile.cuh)
  DescaleStrides q_descale_stride, k_descale_stride, v_descale_stride;
  int v_tiles_keys;  // of one head, whole blocks
  u32 zero;          // 0, which the compiler does not know
};

}  // namespace fa
