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

namespace fa::sm90::splits {

// Tiles carry the key blocks of a CTA, which their order computes from the lengths of all sequences.
struct OnDevice {
  static constexpr bool kSplitKv = true;
  static constexpr bool kOnDevice = true;

  static __device__ void begin() {}
};

}  // namespace fa::sm90::splits

namespace fa::sm90::tile_order {

struct OnDevice {
  static constexpr bool kByWarp = true;

  template <class Config>
  class Walk {
    // Fewer blocks are not worth combining: 320 keys, or 192 of narrow heads.
    static constexpr int kLeastShare = (Config::kDHead <= 64 ? 128 : 256) / Config::kBC + 1;
    static constexpr int kSnap = 128 / Config::kBC;  // nor is a piece of so few blocks
    static constexpr int kQueries = Shape<Config>::kBR / Config::Rows::kGroup;  // of a tile

   public:
    __device__ explicit Walk(const ForwardKernelArgs& args)
        : args_(args),
          team_(args.heads / Config::Rows::kGroup),
          groups_(args.heads / Config::Rows::kGroup / team_.size) {
      const int total = blocks_of_all() * groups_;
      share_ = max((total + team_.count() - 1) / team_.count(), kLeastShare);
      next_ = team_.own() * share_;
      end_ = min(next_ + share_, total);
      if (next_ < end_) find();
    }

    // Called by all lanes, with the same result.
    __device__ bool next(Tile& tile) {
      while (next_ < end_) {
        const int index = (next_ - start_) / blocks_;  // of the tiles of the sequence
        if (index >= q_blocks_ * groups_) {
          start_ += q_blocks_ * groups_ * blocks_;
          enter(batch_ + 1);
          continue;
        }
        const Border border = {start_ + index * blocks_, start_ + (index + 1) * blocks_};
        const int first = border.snap(next_), end = border.snap(end_);
        next_ = border.tile_end;
        if (first >= end) continue;
        tile = {index % q_blocks_, index / q_blocks_ * team_.size + team_.member(), batch_,
                team_.own()};
        tile.piece = piece(border, first, end, tile.q_block);
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

    __device__ Piece piece(const Border& border, int first, int end, int q_block) const {
      const auto range = range_of(q_block, Config::Lengths::sequence(args_, batch_));
      const int first_block = range.first_block() - border.tile_start;
      Piece piece = {first_block + first, first_block + end, border.tile_start / share_,
                     (border.tile_end - 1) / share_ + 1};
      if (border.snap((piece.first_team + 1) * share_) == border.tile_start) ++piece.first_team;
      if (border.snap((piece.end_team - 1) * share_) == border.tile_end) --piece.end_team;
      return piece;
    }

    __device__ auto range_of(int q_block, const attn::Sequence& sequence) const {
      return key_range<Config>({q_block, 0, batch_, 0}, sequence, args_);
    }

    // Every tile of a sequence counts as many blocks, at least as many as its rows see, and one if these see
    // none, so that somebody stores them.
    __device__ void enter(int batch) {
      batch_ = batch;
      const attn::Sequence sequence = Config::Lengths::sequence(args_, batch);
      q_blocks_ = (max(sequence.q_len, 0) + kQueries - 1) / kQueries;
      if constexpr (Config::Function::kListed) {
        blocks_ = 1;
        for (int n = 0; n < q_blocks_; ++n)
          blocks_ = max(blocks_, range_of(n, sequence).end_block());
        return;
      }
      const auto last = range_of(q_blocks_ - 1, sequence);
      const int keys = typename Config::Mask(args_).most_keys(kQueries, sequence);
      blocks_ = q_blocks_ == 1 ? last.end_block() - last.first_block()
                               : min(last.end_block(), (keys + 2 * Config::kBC - 2) / Config::kBC);
      blocks_ = max(blocks_, 1);
    }
    // The blocks of one head of a lane's sequence, if there is one.
    __device__ int blocks_of(int batch) {
      if (batch >= args_.batch) return 0;
      enter(batch);
      return q_blocks_ * blocks_;
    }

    __device__ int blocks_of_all() {
      int blocks = 0;
      for (int batch = lane_id(); batch < args_.batch; batch += kWarpSize)
        blocks += blocks_of(batch);
      return attn::lanes_sum<kWarpSize>(blocks);
    }

    // Enters the sequence that has block next_ of the list. The lanes look at 32 sequences at a time.
    __device__ void find() {
      int before = 0;  // blocks of the list before these sequences
      for (int first = 0;; first += kWarpSize) {
        const int own = blocks_of(first + lane_id());
        int upto = own;
#pragma unroll
        for (int lanes = 1; lanes < kWarpSize; lanes *= 2) {
          const int other = __shfl_up_sync(~0u, upto, lanes);
          if (lane_id() >= lanes) upto += other;
        }
        const u32 after = __ballot_sync(~0u, before + upto * groups_ > next_);
        if (after) {
          const int lane = __ffs(after) - 1;
          start_ = before + __shfl_sync(~0u, upto - own, lane) * groups_;
          return enter(first + lane);
        }
        before += __shfl_sync(~0u, upto, kWarpSize - 1) * groups_;
      }
    }

    const ForwardKernelArgs& args_;
    const Team team_;
    const int groups_;  // of heads, one for each CTA of a team
    int share_, next_, end_;
    int batch_, start_ = 0;  // the sequence, and where its blocks start in the list
    int q_blocks_, blocks_;  // of the sequence, and of each of its tiles
  };
};

}  // namespace fa::sm90::tile_order
