// SPDX-License-Identifier: Apache-2.0
// The slot TileOrder: which tiles a CTA computes, one after the other. One thread asks for them, or a whole
// warp with kByWarp.
#pragma once
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

template <class T, class Config>
concept TileOrderSlot =
    Same<decltype(T::kByWarp), const bool> &&
    requires(typename T::template Walk<Config>& walk, Tile& tile, const ForwardKernelArgs& args) {
      { typename T::template Walk<Config>(args) };
      { walk.next(tile) } -> Same<bool>;
      walk.request();
      walk.finish();
    };

// Takes the next tile of a walk; false after the last one. If a warp does so, the walk is its first lane's,
// unless the order of the tiles takes a warp by itself.
template <class Config, bool ByWarp, class Walk>
__device__ bool next_tile(Walk& walk, Tile& tile) {
  if (!ByWarp || Config::TileOrder::kByWarp) return walk.next(tile);
  const bool more = __shfl_sync(~0u, lane_id() == 0 && walk.next(tile), 0);
  tile = {__shfl_sync(~0u, tile.q_block, 0), __shfl_sync(~0u, tile.head, 0),
          __shfl_sync(~0u, tile.batch, 0), __shfl_sync(~0u, tile.split, 0)};
  return more;
}

// The heads of a group, of `heads` ones of which about `fitting` stay in L2. Groups are even: the short tiles
// of a small last group would leave multiprocessors idle while its long ones end.
__device__ inline int even_group(i64 fitting, int heads) {
  const i64 most = max(fitting, i64(1));
  const i64 groups = max((heads + most / 2) / most, i64(1));
  return static_cast<int>((heads + groups - 1) / groups);
}

}  // namespace fa::sm90

namespace fa::sm90::tile_order {

// One CTA per tile, or per split of its keys; the hardware schedules them.
struct OneEach {
  static constexpr bool kByWarp = false;
  template <class Config>
  class Walk {
    static_assert(
        requires(const ForwardKernelArgs& args) { Config::Splits::count(args); },
        "Splits: count(args), where OneEach gives a CTA to every split");

   public:
    __device__ explicit Walk(const ForwardKernelArgs& args) : args_(args) {}

    __device__ bool next(Tile& tile) {
      if (done_) return false;
      const int splits = Config::Splits::count(args_);
      tile = tile_at<Config>(blockIdx.x / splits, args_);
      tile.split = blockIdx.x % splits;
      return done_ = true;
    }
    __device__ void request() {}
    __device__ void finish() {}

   private:
    const ForwardKernelArgs& args_;
    bool done_ = false;
  };
};

// Each of n resident CTAs takes every n-th tile, so that the loads of a tile overlap with the end of the
// previous tile. Neighbouring CTAs work on the same head, whose keys and values are in L2.
struct Persistent {
  static constexpr bool kByWarp = false;
  template <class Config>
  class Walk {
   public:
    __device__ explicit Walk(const ForwardKernelArgs& args)
        : heads_(args.heads / Config::Rows::kGroup),
          q_blocks_(num_q_blocks<Config>(args)),
          num_tiles_(q_blocks_ * heads_ * args.batch),
          next_(blockIdx.x) {}

    __device__ bool next(Tile& tile) {
      if (next_ >= num_tiles_) return false;
      tile = tile_of(next_ % q_blocks_, next_ / q_blocks_, heads_);
      next_ += gridDim.x;
      return true;
    }
    __device__ void request() {}
    __device__ void finish() {}

   private:
    const int heads_;  // or groups of heads that share a tile
    const int q_blocks_, num_tiles_;
    int next_;
  };
};

// CTAs take the next tile from a counter in global memory when they are ready for it. Heads are
// processed in groups whose keys and values stay in L2. Within a group the last query blocks come
// first, since they see the most keys under a causal mask, so that short tiles come last.
struct Dynamic {
  static constexpr bool kByWarp = false;
  template <class Config>
  class Walk {
   public:
    __device__ explicit Walk(const ForwardKernelArgs& args)
        : counter_(args.tile_counter),
          heads_(args.heads / Config::Rows::kGroup),
          all_heads_(heads_ * args.batch),
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
    static constexpr int kSharing = Config::Rows::kGroup;  // heads of a tile

    static __device__ int heads_in_group(const ForwardKernelArgs& args) {
      const i64 kv_bytes = static_cast<i64>(args.seq_len_k) * Config::kDHead * 2 * kElementBytes;
      const i64 fitting = (static_cast<i64>(Config::kGroupMib) << 20) / (kv_bytes * kSharing);
      return even_group(fitting, args.heads / kSharing * args.batch);
    }

    int* const counter_;
    const int heads_, all_heads_;  // or groups of heads that share a tile
    const int q_blocks_, group_;
    int taken_;  // tiles that CTAs had taken before, without their first ones
  };
};

// Sequences that differ in length: CTAs take the next tile from a counter in global memory, sequence by
// sequence, then by group of heads, and within a group the last query blocks first. The tiles of a CTA
// only advance, so each CTA continues its search where it was.
struct Packed {
  static constexpr bool kByWarp = false;
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
      if constexpr (Config::Lengths::kLeastQueries > 0) batch = Config::Lengths::next(args_, batch);
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
      return even_group(fitting, args.heads / args.heads_per_kv) * sharing;
    }

    const ForwardKernelArgs& args_;
    const int heads_;  // or groups of heads that share a tile
    const int group_;
    int taken_, batch_, q_blocks_ = 0, first_tile_ = 0;
  };
};

// Every CTA has the same number of key blocks, consecutive in the list of all tiles: the end of one
// tile, whole tiles, the beginning of another.
struct StreamK {
  static constexpr bool kByWarp = false;
  template <class Config>
  class Walk {
   public:
    __device__ explicit Walk(const ForwardKernelArgs& args)
        : args_(args),
          next_(blockIdx.x * args.split_blocks / args.key_blocks),
          end_(min(((blockIdx.x + 1) * args.split_blocks - 1) / args.key_blocks + 1,
                   num_tiles<Config>(args))) {}

    __device__ bool next(Tile& tile) {
      if (next_ >= end_) return false;
      tile = tile_at<Config>(next_++, args_);
      tile.split = blockIdx.x;
      return true;
    }
    __device__ void request() {}
    __device__ void finish() {}

   private:
    const ForwardKernelArgs& args_;
    int next_;
    const int end_;
  };
};

}  // namespace fa::sm90::tile_order
