// SPDX-License-Identifier: Apache-2.0
// Sequences that differ in length: CTAs take the next tile from a counter in global memory, sequence by
// sequence, then by group of heads, and within a group the last query blocks first. The tiles of a CTA
// only advance, so each CTA continues its search where it was.
#pragma once
#include <fa/sm90/tile.cuh>

namespace fa::sm90::tile_order {

struct Packed {
  template <class Config>
  class Walk {
   public:
    __device__ explicit Walk(const ForwardKernelArgs& args)
        : args_(args),
          heads_(args.heads / Config::Rows::kGroup),
          group_(heads_in_group(args)),
          taken_(blockIdx.x - gridDim.x) {
      enter(0);
    }

    __device__ bool next(Tile& tile) {
      const int index = gridDim.x + taken_;
      while (batch_ < args_.batch && index >= first_tile_ + q_blocks_ * heads_) {
        first_tile_ += q_blocks_ * heads_;
        enter(batch_ + 1);
      }
      if (batch_ >= args_.batch) return false;
      const int in_batch = index - first_tile_;
      const int first_head = in_batch / (q_blocks_ * group_) * group_;
      const int group = min(group_, heads_ - first_head);  // the last one may be smaller
      const int in_group = in_batch - first_head * q_blocks_;
      tile = {q_blocks_ - 1 - in_group / group, first_head + in_group % group, batch_, 0};
      return true;
    }

    __device__ void request() { taken_ = atomicAdd(args_.tile_counter, 1); }

    __device__ void finish() {
      if (atomicAdd(args_.tile_counter + 1, 1) == gridDim.x - 1) {
        args_.tile_counter[0] = 0;
        args_.tile_counter[1] = 0;
      }
    }

   private:
    __device__ void enter(int batch) {
      batch_ = batch;
      if (batch < args_.batch)
        q_blocks_ =
            (Config::Lengths::q_len(args_, batch) * Config::Rows::kGroup + Shape<Config>::kBR - 1) /
            Shape<Config>::kBR;
    }

    // Heads whose keys and values stay in L2; where no mask makes tiles unequal, those that share
    // them.
    static __device__ int heads_in_group(const ForwardKernelArgs& args) {
      const int sharing = args.heads_per_kv / Config::Rows::kGroup;
      if (Config::kGroupMib == 0) return sharing;
      const i64 kv_bytes = static_cast<i64>(args.seq_len_k) * Config::kDHead * 2 * kElementBytes;
      const i64 fitting = (static_cast<i64>(Config::kGroupMib) << 20) / kv_bytes;
      return static_cast<int>(
          min(max(fitting, i64(1)) * sharing, i64(args.heads / Config::Rows::kGroup)));
    }

    const ForwardKernelArgs& args_;
    const int heads_;  // or groups of heads that share a tile
    const int group_;
    int taken_, batch_, q_blocks_ = 0, first_tile_ = 0;
  };
};

}  // namespace fa::sm90::tile_order
