// SPDX-License-Identifier: Apache-2.0
// Lists of the blocks that tiles visit, where a user's mask decides that. A list has the blocks that all rows of
// its tile see whole, and then those that need the mask.
#pragma once
#include <fa/core.cuh>

namespace fa::attn {

// Entry i of a list; of `stride` places, those that need the mask have the last ones.
struct BlockList {
  const int* places;
  int stride;
  int whole, count;

  __device__ int entry(int i) const { return __ldg(places + (i < whole ? i : stride - count + i)); }
};

// The number of the list of a tile. `tile` counts the tiles of a head, of all sequences that have their own.
template <class Args>
__device__ int list_number(const Args& args, int tile, int head) {
  return tile * args.list_heads + head % args.list_heads;
}

template <class Args>
__device__ BlockList list_of(const Args& args, int number, int whole, int count) {
  return {args.list_entries + static_cast<i64>(number) * args.list_stride, args.list_stride, whole,
          count};
}
template <class Args>
__device__ BlockList list_of(const Args& args, int number) {
  const int* const counts = args.list_counts + 2ll * number;
  return list_of(args, number, __ldg(counts), __ldg(counts + 1));
}

// The key blocks of a tile of queries by their places in a list, which are visited from the last to the first.
// It answers what KeyRange answers for blocks that follow each other.
struct ListedKeys {
  BlockList list;

  __device__ int first_block() const { return 0; }
  __device__ int end_block() const { return list.count; }
  __device__ int key_block(int place) const { return list.entry(place); }
  __device__ bool near_end(int place) const { return place >= list.whole; }
  __device__ bool near_start(int /*place*/) const { return false; }
  __device__ bool hides(int place) const { return place >= list.whole; }
};

}  // namespace fa::attn
