// SPDX-License-Identifier: Apache-2.0
// CTAs take the next tile from a counter in global memory when they are ready for it. Heads are
// processed in groups whose keys and values stay in L2. Within a group the last query blocks come
// first, since they see the most keys under a causal mask, so that short tiles come last.
#pragma once
#include <fa/sm90/tile.cuh>

namespace fa::sm90::tile_order {

struct Dynamic {
  template <class Config>
  class Walk {
   public:
    __device__ explicit Walk(const ForwardKernelArgs& args)
        : counter_(args.tile_counter),
          heads_(args.heads),
          all_heads_(args.heads * args.batch),
          q_blocks_(num_q_blocks<Config>(args)),
          group_(heads_in_group(args)),
          taken_(blockIdx.x - gridDim.x) {}

    __device__ bool next(Tile& tile) {
      const int index = gridDim.x + taken_;
      if (index >= q_blocks_ * all_heads_) return false;
      const int first_head = index / (q_blocks_ * group_) * group_;
      const int group = min(group_, all_heads_ - first_head);  // the last one may be smaller
      const int in_group = index - first_head * q_blocks_;
      tile = tile_of(q_blocks_ - 1 - in_group / group, first_head + in_group % group, heads_);
      return true;
    }

    // Requests the tile after this one; the result is needed in next().
    __device__ void request() { taken_ = atomicAdd(counter_, 1); }

    // The last CTA to finish resets the counters to zero.
    __device__ void finish() {
      if (atomicAdd(counter_ + 1, 1) == gridDim.x - 1) {
        counter_[0] = 0;
        counter_[1] = 0;
      }
    }

   private:
    static __device__ int heads_in_group(const ForwardKernelArgs& args) {
      const i64 kv_bytes = static_cast<i64>(args.seq_len_k) * Config::kDHead * 2 * kElementBytes;
      const i64 fitting = (static_cast<i64>(Config::kGroupMib) << 20) / kv_bytes;
      return static_cast<int>(min(max(fitting, i64(1)), i64(args.heads) * args.batch));
    }

    int* const counter_;
    const int heads_, all_heads_, q_blocks_, group_;
    int taken_;  // tiles that CTAs had taken before, without their first ones
  };
};

}  // namespace fa::sm90::tile_order
