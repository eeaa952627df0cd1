// SPDX-License-Identifier: Apache-2.0
// The run-time arguments of an FP8 forward kernel. fp8/args.py mirrors them; every unit asserts that.
#pragma once
#include <fa/forward_args.cuh>
#include <fa/ptx/async.cuh>

namespace fa {

struct Fp8KernelArgs : ForwardKernelArgs {
  void* v_tiles;     // V transposed, tile by tile (fp8/value_tile.cuh)
  int v_tiles_keys;  // of one head of a sequence, or of one head of all packed sequences
  int v_tiles_step;  // keys of a sequence begin at a multiple of it
  u32 zero;          // 0, which the compiler does not know
};

namespace sm90::fp8 {

// Where the keys of a head of a sequence begin in v_tiles, in keys of all heads. Packed sequences of any
// length do not overlap, although each is rounded up to whole steps.
__device__ inline i64 first_in_tiles(const Fp8KernelArgs& args, int batch, int kv_head) {
  const int heads = args.heads / args.heads_per_kv;
  if (!args.cu_seqlens_k) return static_cast<i64>(batch * heads + kv_head) * args.v_tiles_keys;
  const int steps =
      (args.cu_seqlens_k[batch] + batch * (args.v_tiles_step - 1)) / args.v_tiles_step;
  return static_cast<i64>(kv_head) * args.v_tiles_keys + steps * args.v_tiles_step;
}

}  // namespace sm90::fp8

}  // namespace fa

namespace fa::sm90::fp8 {

// The tensor maps of q and k, and of v if it is loaded as the caller has it. O is stored from registers.
struct TensorMaps {
  const TensorMap &q, &k;
};

struct TensorMapsWithValues {
  const TensorMap &q, &k, &v;  // v: keys, heads, columns, sequences
};

}  // namespace fa::sm90::fp8
