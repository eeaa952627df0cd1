// SPDX-License-Identifier: Apache-2.0
// Lists of the blocks that tiles visit, where a user's mask decides that. A list has three parts, each in the order
// of its blocks: those that need the mask and come before all others, those that all rows of the tile see whole,
// and the rest of those that need the mask. Where scores fall with the distance, the second part is in the order
// of NearestFirst.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn {

// An entry is a block, with a bit for each piece of the tile that sees it whole. A piece has the rows of one
// warpgroup.
inline constexpr int kBlockBits = 24;
inline constexpr u32 kBlockMask = (1u << kBlockBits) - 1;
inline constexpr int kMostPieces = 4;
inline constexpr u32 kWholeForAll = ((1u << kMostPieces) - 1) << kBlockBits;

__device__ inline int block_of(u32 entry) { return static_cast<int>(entry & kBlockMask); }

// What a piece passes over at the ends of its tile's list, in a byte of ListCounts::pieces: how many blocks at
// the end of the list, how many at its beginning, and whether it sees only the narrow part of the block that is
// the last one then.
struct PieceEnds {
  static constexpr int kMost = 7;
  int after, before;
  bool narrow;

  __device__ static PieceEnds of(u32 pieces, int piece) {
    const u32 byte = pieces >> (8 * piece);
    return {static_cast<int>(byte & kMost), static_cast<int>(byte >> 3 & kMost),
            (byte >> 6 & 1) > 0};
  }
  __device__ u32 byte() const {
    const bool all_after = after <= kMost;
    return min(after, kMost) | min(before, kMost) << 3 | (narrow && all_after) << 6;
  }
};

// The places of the blocks that all rows see whole, from the first to the end; how many blocks there are; and
// the bytes of the pieces.
struct alignas(16) ListCounts {
  int open_first, open_end, count;
  u32 pieces;
};

struct BlockList {
  const u32* entries;
  ListCounts counts;

  __device__ u32 entry(int place) const { return __ldg(entries + place); }
  // Some row of the tile does not see all of the block.
  __device__ bool hides(int place) const {
    return place < counts.open_first || place >= counts.open_end;
  }
};

// The number of the list of a tile. `tile` counts the tiles of a head, of all sequences that have their own.
template <class Args>
__device__ int list_number(const Args& args, int tile, int head) {
  return tile * args.list_heads + head % args.list_heads;
}

template <class Args>
__device__ const u32* list_entries(const Args& args, int number) {
  return args.list_entries + static_cast<i64>(number) * args.list_stride;
}
template <class Args>
__device__ BlockList list_of(const Args& args, int number) {
  const int4 x = __ldg(reinterpret_cast<const int4*>(args.list_counts) + number);
  return {list_entries(args, number), {x.x, x.y, x.z, static_cast<u32>(x.w)}};
}

// The key blocks of a tile of queries by their places in a list, which are visited from the last to the first.
// It answers what KeyRange answers for blocks that follow each other. A piece of the tile visits fewer.
struct ListedKeys {
  BlockList list;
  int piece = -1;
  u32 next = 0;  // an entry, which nothing waits for before next_block()

  __device__ void begin_piece(int warpgroup) { piece = warpgroup; }

  __device__ int end_block() const { return list.counts.count - (piece < 0 ? 0 : ends().after); }
  __device__ int first_block() const { return piece < 0 ? 0 : min(ends().before, end_block()); }
  __device__ int key_block(int place) const { return block_of(list.entry(place)); }
  __device__ void read_ahead(int place, int first) {
    if (place >= first) next = list.entry(place);
  }
  __device__ int next_block(int /*place*/) const { return block_of(ptx::word_here(next)); }
  __device__ bool sees_whole(u32 entry) const { return entry >> (kBlockBits + piece) & 1; }
  __device__ bool near_end(int place) const { return place >= list.counts.open_end; }
  __device__ bool near_start(int place) const { return place < list.counts.open_first; }
  __device__ PieceEnds ends() const { return PieceEnds::of(list.counts.pieces, piece); }
};

}  // namespace fa::attn
