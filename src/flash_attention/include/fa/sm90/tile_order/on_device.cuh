// SPDX-License-Identifier: Apache-2.0
// Stream-K for sequences whose lengths only the device knows: the key blocks of all tiles form one list, and
// every team of CTAs has an even share of it, of one tile or of several. No share depends on the host.
#pragma once
#include <fa/sm90/tile.cuh>
#include <fa/sm90/tile_order.cuh>

namespace fa::sm90 {

// The CTAs of a team compute neighbouring heads of K and V of the same sequence at the same time, which lie
// next to each other in memory.
struct Team {
  static constexpr int kMost = 8;

  int size = kMost;

  // `heads` are those of K and V.
  __device__ explicit Team(int heads) {
    while (heads % size || size > static_cast<int>(gridDim.x)) --size;
  }
  __device__ int count() const { return gridDim.x / size; }
  __device__ int own() const { return blockIdx.x / size; }
  __device__ int member() const { return blockIdx.x % size; }
  // The CTA of another team that has the same heads as this one.
  __device__ int peer(int team) const { return team * size + member(); }
};

}  // namespace fa::sm90

namespace fa::sm90::tile_order {

struct OnDevice {
  static constexpr bool kByWarp = true;

  template <class Config>
  class Walk {
    static constexpr int kLeastShare = 256 / Config::kBC + 1;  // fewer are not worth combining
    static constexpr int kSnap = 128 / Config::kBC;            // nor is a piece of so few blocks
    static constexpr int kQueries = Shape<Config>::kBR / Config::Rows::kGroup;  // of a tile

   public:
    __device__ explicit Walk(const ForwardKernelArgs& args)
        : args_(args),
          team_(args.heads / Config::Rows::kGroup),
          groups_(args.heads / Config::Rows::kGroup / team_.size) {
      enter(0);
      const int total = blocks_of_all() * groups_;
      share_ = max((total + team_.count() - 1) / team_.count(), kLeastShare);
      next_ = team_.own() * share_;
      end_ = min(next_ + share_, total);
    }

    // Called by all lanes.
    __device__ bool next(Tile& tile) {
      while (next_ < end_) {
        const int lane = find();
        const int blocks = of_lane(blocks_, lane), q_blocks = of_lane(q_blocks_, lane);
        const int start = before_ + (of_lane(upto_, lane) - q_blocks * blocks) * groups_;
        const int index = (next_ - start) / blocks;  // of the tiles of the sequence
        const Border border = {start + index * blocks, start + (index + 1) * blocks};
        const int first = border.snap(next_), end = border.snap(end_);
        next_ = border.tile_end;
        if (first >= end) continue;
        tile.q_block = index % q_blocks;
        tile.head = index / q_blocks * team_.size + team_.member();
        tile.batch = first_sequence_ + lane;
        tile.split = team_.own();
        tile.piece =
            piece(border, first, end, tile.q_block, {of_lane(q_len_, lane), of_lane(k_len_, lane)});
        return true;
      }
      return false;
    }
    __device__ void request() {}
    __device__ void finish() {}

   private:
    // A tile in the list. Borders of shares near its ends move there.
    struct Border {
      int tile_start, tile_end;

      __device__ int snap(int at) const {
        if (at >= tile_end) return tile_end;
        if (at - tile_start <= kSnap) return tile_start;
        return tile_end - at <= kSnap ? tile_end : at;
      }
    };

    __device__ Piece piece(const Border& border, int first, int end, int q_block,
                           const attn::Sequence& lengths) const {
      const auto range = key_range<Config>(q_block, lengths, args_);
      const int first_block = range.first_block() - border.tile_start;
      Piece piece = {first_block + first, first_block + end, border.tile_start / share_,
                     (border.tile_end - 1) / share_ + 1};
      if (border.snap((piece.first_team + 1) * share_) == border.tile_start) ++piece.first_team;
      if (border.snap((piece.end_team - 1) * share_) == border.tile_end) --piece.end_team;
      return piece;
    }

    // Reads the lengths of 32 sequences, one in each lane.
    __device__ void enter(int first) {
      first_sequence_ = first;
      const int batch = first + lane_id();
      q_len_ = k_len_ = q_blocks_ = blocks_ = 0;
      if (batch < args_.batch) read(batch);
      upto_ = q_blocks_ * blocks_;
#pragma unroll
      for (int lanes = 1; lanes < kWarpSize; lanes *= 2) {
        const int other = __shfl_up_sync(~0u, upto_, lanes);
        if (lane_id() >= lanes) upto_ += other;
      }
    }

    // Every tile of a sequence counts as many blocks, at least as many as its rows see, and one if these see
    // none, so that somebody stores them.
    __device__ void read(int batch) {
      const attn::Sequence sequence = Config::Lengths::sequence(args_, batch);
      q_len_ = sequence.q_len;
      k_len_ = sequence.k_len;
      q_blocks_ = (max(q_len_, 0) + kQueries - 1) / kQueries;
      const auto last = key_range<Config>(q_blocks_ - 1, sequence, args_);
      const int keys = typename Config::Mask(args_).most_keys(kQueries, sequence);
      blocks_ = q_blocks_ == 1 ? last.end_block() - last.first_block()
                               : min(last.end_block(), (keys + 2 * Config::kBC - 2) / Config::kBC);
      blocks_ = max(blocks_, 1);
    }

    // The sequences of the lanes are the first ones.
    __device__ int blocks_of_all() {
      int all = 0;
      for (int first = 0;; first += kWarpSize) {
        if (first > 0) enter(first);
        all += of_lane(upto_, kWarpSize - 1);
        if (first + kWarpSize >= args_.batch) break;
      }
      if (first_sequence_ > 0) enter(0);
      return all;
    }

    // The lane whose sequence has block next_ of the list.
    __device__ int find() {
      u32 after;
      while (!(after = __ballot_sync(~0u, before_ + upto_ * groups_ > next_))) {
        before_ += of_lane(upto_, kWarpSize - 1) * groups_;
        enter(first_sequence_ + kWarpSize);
      }
      return __ffs(after) - 1;
    }

    static __device__ int of_lane(int x, int lane) { return __shfl_sync(~0u, x, lane); }

    const ForwardKernelArgs& args_;
    const Team team_;
    const int groups_;  // of heads, one for each CTA of a team
    int share_, next_, end_;
    int first_sequence_, before_ = 0;        // and the blocks of the list before it
    int q_len_, k_len_, q_blocks_, blocks_;  // of a lane's sequence, and of each of its tiles
    int upto_;  // blocks of one head of the lanes' sequences, up to this lane's
  };
};

}  // namespace fa::sm90::tile_order
