// SPDX-License-Identifier: Apache-2.0
// A tile is a block of query rows of one head (or of a group of heads) of one sequence. A split is the
// range of its keys that a CTA visits, with split-KV. A tile order yields the tiles of a CTA one after
// the other. The slot Splits says which key blocks of a tile a CTA visits.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/attn/rescale.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/forward_args.cuh>
#include <fa/ptx/async.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

// The key blocks of a tile that a CTA visits, where the device decides that, and the teams of CTAs that visit
// some of them.
struct Piece {
  int first, end;
  int first_team, end_team;

  __device__ bool is_whole() const { return end_team - first_team == 1; }
};

struct Tile {
  int q_block, head, batch, split;
  Piece piece = {};
};

template <class Config>
__device__ int num_q_blocks(const ForwardKernelArgs& args) {
  return (args.seq_len_q * Config::Rows::kGroup + Shape<Config>::kBR - 1) / Shape<Config>::kBR;
}

__device__ inline Tile tile_of(int q_block, int head_of_all, int heads) {
  return {q_block, head_of_all % heads, head_of_all / heads, 0};
}

// Tiles in the order of their query blocks, then of their heads, then of their sequences. Of packed queries,
// the numbers of the tiles do not follow each other.

template <class Config>
__device__ auto packed_tiles(const ForwardKernelArgs& args) {
  constexpr int kRows = Shape<Config>::kBR, kGroup = Config::Rows::kGroup;
  static_assert(kRows % kGroup == 0, "a tile has whole queries");
  return attn::PackedBlocks<kRows / kGroup>{args.cu_seqlens_q, args.seq_len_q, args.batch};
}

template <class Config>
__device__ int num_tiles(const ForwardKernelArgs& args) {
  if constexpr (Config::Lengths::kPackedQueries) return packed_tiles<Config>(args).count();
  return num_q_blocks<Config>(args) * (args.heads / Config::Rows::kGroup) * args.batch;
}

template <class Config>
__device__ Tile tile_at(int index, const ForwardKernelArgs& args) {
  if constexpr (Config::Lengths::kPackedQueries) {
    const int batch = packed_tiles<Config>(args).sequence(index);
    return {index - packed_tiles<Config>(args).first(batch), 0, batch, 0};
  }
  const int q_blocks = num_q_blocks<Config>(args);
  return tile_of(index % q_blocks, index / q_blocks, args.heads / Config::Rows::kGroup);
}

template <class Config>
__device__ int tile_index(const Tile& tile, const ForwardKernelArgs& args) {
  if constexpr (Config::Lengths::kPackedQueries)
    return packed_tiles<Config>(args).first(tile.batch) + tile.q_block;
  const int head_of_all = tile.batch * (args.heads / Config::Rows::kGroup) + tile.head;
  return head_of_all * num_q_blocks<Config>(args) + tile.q_block;
}

// The head of K and V that a tile's heads share.
template <class Config>
__device__ int kv_head(const Tile& tile, const ForwardKernelArgs& args) {
  return Config::Rows::kGroup > 1 ? tile.head : tile.head / args.heads_per_kv;
}

// Splits with partial results say where these are stored.
template <class T>
concept PartialsOfSplits = requires(const ForwardKernelArgs& args, int tile, int split) {
  { T::partial(tile, split, args) } -> Same<int>;
  { T::first_split(tile, args) } -> Same<int>;
  { T::end_split(tile, args) } -> Same<int>;
};

template <class T, class Range>
concept SplitsSlot =
    requires {
      { T::kSplitKv } -> Same<const bool&>;
      { T::kOnDevice } -> Same<const bool&>;
      T::begin();
    } &&
    (T::kOnDevice ||
     requires(const ForwardKernelArgs& args, const Range& range, int tile, int split) {
       { T::first_block(range, tile, split, args) } -> Same<int>;
       { T::end_block(range, tile, split, args) } -> Same<int>;
     }) &&
    (!T::kSplitKv || T::kOnDevice || PartialsOfSplits<T>);

}  // namespace fa::sm90

namespace fa::sm90::splits {

// No split-KV: a tile visits all key blocks of its rows.
struct Whole {
  static constexpr bool kSplitKv = false;
  static constexpr bool kOnDevice = false;

  static __device__ void begin() {}
  static __device__ int count(const ForwardKernelArgs&) { return 1; }
  template <class Range>
  static __device__ int first_block(const Range& range, int /*tile*/, int /*split*/,
                                    const ForwardKernelArgs&) {
    return range.first_block();
  }
  template <class Range>
  static __device__ int end_block(const Range& range, int /*tile*/, int /*split*/,
                                  const ForwardKernelArgs&) {
    return range.end_block();
  }
};

}  // namespace fa::sm90::splits

namespace fa::sm90 {

// The key blocks that the rows of a tile see, as far as they are in its split. They are visited from the
// last to the first.
struct VisitedBlocks {
  int first, end;
};

// Those of `range`, which has rows of the tile.
template <class Config, class Range>
__device__ VisitedBlocks blocks_of(const Range& range, const Tile& tile,
                                   const ForwardKernelArgs& args) {
  if constexpr (Config::Splits::kOnDevice) {
    const auto within = [&tile](int block) {
      return min(max(block, tile.piece.first), tile.piece.end);
    };
    return {within(range.first_block()), within(range.end_block())};
  } else {
    const int index = tile_index<Config>(tile, args);
    return {Config::Splits::first_block(range, index, tile.split, args),
            Config::Splits::end_block(range, index, tile.split, args)};
  }
}

// The key blocks that `count` queries from `first` on see, of a tile; or those of the tile's list.
template <class Config>
__device__ auto key_range(const Tile& tile, int first, int count, const attn::Sequence& sequence,
                          const ForwardKernelArgs& args) {
  if constexpr (Config::Function::kListed) {
    const int batch = tile.batch % Config::Function::of(args).list_batches;
    return Config::Function::listed_keys(args, batch * num_q_blocks<Config>(args) + tile.q_block,
                                         tile.head);
  } else if constexpr (Config::Function::kNearestFirst) {
    constexpr int kQueries = Shape<Config>::kBR / Config::Rows::kGroup;
    return Config::Function::template nearest_keys<kQueries, Config::kBC>(args, tile.q_block,
                                                                          sequence);
  } else {
    return attn::KeyRange<typename Config::Mask, Config::kBC>(typename Config::Mask(args), first,
                                                              count, sequence);
  }
}

template <class Config>
__device__ auto key_range(const Tile& tile, const attn::Sequence& sequence,
                          const ForwardKernelArgs& args) {
  return key_range<Config>(tile, Config::Rows::position(tile.q_block * Shape<Config>::kBR),
                           Shape<Config>::kBR / Config::Rows::kGroup, sequence, args);
}

template <class Config>
__device__ VisitedBlocks visited_blocks(const Tile& tile, const attn::Sequence& sequence,
                                        const ForwardKernelArgs& args) {
  return blocks_of<Config>(key_range<Config>(tile, sequence, args), tile, args);
}

// How the rows of a warpgroup go through key blocks: from the last one that they see to the first, the nearest
// first, or through the list of their tile.
template <class Config>
class KeyWalk {
  using Function = typename Config::Function;
  using Mask = typename Config::Mask;

 public:
  __device__ bool has_block() const { return uniform(block_ >= first_block_); }
  __device__ bool near_end() const {
    return uniform(block_ >= first_block_ && (kHidesEverywhere || range_.near_end(block_)));
  }
  __device__ bool open() const {
    return uniform(block_ >= first_block_ && !range_.near_start(block_));
  }
  __device__ bool near_start() const { return kHasStart && has_block(); }
  template <int Keys>
  __device__ bool first_block_within() const {
    if constexpr (Function::kListed)
      return uniform(block_ >= first_block_ && block_ + 1 == range_.end_block() &&
                     range_.ends().narrow);
    else
      return uniform(block_ >= first_block_ && range_.end_last - key() <= Keys);
  }
  __device__ void next_block() { --block_; }
  // Reads the entry of a list, if something depends on where a block of this kind is.
  template <class Block>
  __device__ void look_up(Block) {
    if constexpr (Function::kListed && (attn::kNeedsPlaces<Config> || Block::kHidden))
      entry_ = range_.list.entry(block_);
  }

 protected:
  using Range = decltype(key_range<Config>(Tile{}, attn::Sequence{}, ForwardKernelArgs{}));
  // Rows may see blocks before those that all of them see whole.
  static constexpr bool kHasStart = Mask::kHasStart || Function::kListed || Function::kNearestFirst;

  __device__ void begin_walk(int first, int end) { first_block_ = first, block_ = end - 1; }

  // The first key of the block.
  __device__ int key() const {
    if constexpr (Function::kListed)
      return Function::block(entry_) * Config::kBC;
    else
      return range_.key_block(block_) * Config::kBC;
  }
  // Whether some row does not see some key of a block of this kind.
  template <class Block>
  __device__ bool is_hidden() const {
    if (kSame<Block, attn::FirstMasked>) return true;
    if constexpr (Function::kListed)
      return Block::kHidden && uniform(!range_.sees_whole(entry_));
    else
      return Block::kHidden && (kHidesEverywhere || uniform(range_.hides(block_)));
  }
  // Whether the built-in mask of a kernel with lists hides nothing of the block: it does not end in it.
  __device__ bool is_shown_whole(const attn::Sequence& sequence) const {
    if constexpr (!Function::kListed || !kSame<Mask, attn::mask::Full>) return false;
    return uniform(key() + Config::kBC <= sequence.k_len);
  }

  Range range_;
  int block_, first_block_;

 private:
  // A mask function without lists may hide keys of every block.
  static constexpr bool kHidesEverywhere = Function::kMasks && !Function::kListed;
  u32 entry_;
};

}  // namespace fa::sm90
