// SPDX-License-Identifier: Apache-2.0
// The part has all keys of its heads: dQ is complete, and leaves in 16 bits.
#pragma once
#include <fa/sm90/backward/query_rows.cuh>
#include <fa/sm90/backward/staged_rows.cuh>
#include <fa/sm90/backward/tails.cuh>

namespace fa::sm90::backward::sums {

struct Stored {
  template <class Config, class Sum>
  static __device__ void store(const Sum& sum, const QueryRows<Config>& tile, int warpgroup,
                               const TensorMap& map) {
    const BackwardKernelArgs& args = tile.args;
    sync_warpgroups<kQueryWarpgroups>();  // both have read K, whose buffers take dQ
    const auto staged = QueryMemory<Config>::k(warpgroup);
    const int first = warp_id() % kWarps * kWarpRows;
    const int row = tile.first_row(warpgroup) + first;
    stage_rows<typename Config::DType>(sum, args.softmax_scale, staged, first);
    const attn::Sequence& sequence = tile.sequence;
    store_staged<Config::Lengths::kPerBatch>(
        staged, first, sequence.q_len - row, map,
        {args.dq, args.dq_stride, args.d_qk, sequence.q_first + row, tile.head, sequence.q_batch});
    if (lane_id() == 0) ptx::tma_wait();  // shared memory outlives the store that reads it
  }
};

}  // namespace fa::sm90::backward::sums
