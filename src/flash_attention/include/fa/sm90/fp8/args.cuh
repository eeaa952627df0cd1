// SPDX-License-Identifier: Apache-2.0
// The run-time arguments of an FP8 forward kernel. fp8/args.py mirrors them; every unit asserts that.
#pragma once
#include <fa/attn/sequence.cuh>
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

// The place of a sequence in v_tiles. Sequences with kLeastQueries or more queries begin so many rows of q
// apart, so these rows number them, and the tiles have no place for each of the others. The places of
// sequences never fall, and that of the next one is higher.
template <class Lengths>
__device__ int place_in_tiles(const Fp8KernelArgs& args, int batch) {
  if constexpr (Lengths::kLeastQueries > 0)
    return min(batch, args.cu_seqlens_q[batch] / Lengths::kLeastQueries);
  return batch;
}

// The sequence at a place, if there is one: another one has no query, or another place.
template <class Lengths>
__device__ int sequence_in_tiles(const Fp8KernelArgs& args, int place) {
  if constexpr (Lengths::kLeastQueries > 0)
    return attn::sequence_at(place, args.batch,
                             [&args](int batch) { return place_in_tiles<Lengths>(args, batch); });
  return place;
}

// Where the keys of a head of a sequence begin in v_tiles, in keys of all heads. Packed sequences of any
// length do not overlap, although each is rounded up to whole steps.
template <class Lengths>
__device__ i64 first_in_tiles(const Fp8KernelArgs& args, int batch, int kv_head) {
  const int heads = args.heads / args.heads_per_kv;
  const int place = place_in_tiles<Lengths>(args, batch);
  if (!args.cu_seqlens_k) return static_cast<i64>(place * heads + kv_head) * args.v_tiles_keys;
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
