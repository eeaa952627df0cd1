// SPDX-License-Identifier: Apache-2.0
// The slot Lengths of two kernels that share the sequences of a call by their numbers of queries.
#pragma once
#include <fa/attn/sequence.cuh>

namespace fa::attn::lengths {

// For a kernel, the sequences of the other one have no queries, and so no tile: nothing is loaded or stored
// for them.
template <int Least, int Most>
struct Between : PerBatch {
  static constexpr int kLeastQueries = Least;

  static __device__ int q_len(const CallArgs& args, int batch) {
    const int queries = PerBatch::q_len(args, batch);
    return Least <= queries && queries <= Most ? queries : 0;
  }
  static __device__ Sequence sequence(const CallArgs& args, int batch) {
    Sequence sequence = PerBatch::sequence(args, batch);
    sequence.q_len = q_len(args, batch);
    return sequence;
  }
  // The first sequence from `batch` on that has queries, or their number. Loads do not wait for each other.
  static __device__ int next(const CallArgs& args, int batch) {
    constexpr int kAtOnce = 8;
    for (; batch < args.batch; batch += kAtOnce) {
      int found = kAtOnce;
#pragma unroll
      for (int n = kAtOnce - 1; n >= 0; --n)
        if (q_len(args, min(batch + n, args.batch - 1)) > 0) found = n;
      if (found < kAtOnce) return batch + found;
    }
    return args.batch;
  }
};

}  // namespace fa::attn::lengths
