// SPDX-License-Identifier: Apache-2.0
// The numbers of the tiles of packed queries, where all heads share a tile. The host does not know how many
// queries each sequence has, and no kernel counts the tiles of all sequences: the first tile of a sequence
// has a number that leaves room for the tiles of all sequences before it. Some numbers stay without a tile.
#pragma once
#include <fa/forward_args.cuh>

namespace fa::sm90 {

// The last of `count` sequences that starts at `place` or before it. `start(n)` never falls.
template <class Start>
__device__ int sequence_at(int place, int count, Start start) {
  int found = 0;
  for (int end = count; end - found > 1;) {
    const int middle = (found + end) / 2;
    if (start(middle) <= place)
      found = middle;
    else
      end = middle;
  }
  return found;
}

template <class Rows, int TileRows>
struct PackedTiles {
  static_assert(TileRows % Rows::kGroup == 0, "a tile has whole queries");
  static constexpr int kQueries = TileRows / Rows::kGroup;  // of a tile

  const ForwardKernelArgs& args;

  // A sequence of n queries has at most (n + kQueries - 1) / kQueries tiles, and none has more than the
  // longest.
  __device__ int first(int batch) const {
    const i64 of_longest = (args.seq_len_q + kQueries - 1) / kQueries;
    const i64 queries = args.cu_seqlens_q[batch] + static_cast<i64>(batch) * (kQueries - 1);
    return static_cast<int>(min(batch * of_longest, queries / kQueries));
  }
  __device__ int count() const { return first(args.batch); }
  __device__ int sequence(int tile) const {
    return sequence_at(tile, args.batch, [this](int batch) { return first(batch); });
  }
};

}  // namespace fa::sm90
