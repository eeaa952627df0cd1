// SPDX-License-Identifier: Apache-2.0
// The run-time arguments of an FP8 forward kernel. fp8/args.py mirrors them; every unit asserts that.
#pragma once
#include <fa/forward_args.cuh>

namespace fa {

struct Fp8KernelArgs : ForwardKernelArgs {
  void* v_tiles;     // V transposed, tile by tile (fp8/value_tile.cuh)
  int v_tiles_keys;  // of one head, whole blocks
  u32 zero;          // 0, which the compiler does not know
};

}  // namespace fa
