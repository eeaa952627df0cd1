// SPDX-License-Identifier: Apache-2.0
// The order of key blocks where scores fall with the distance: those nearest to the queries come first, so that
// later blocks have no larger scores.
#pragma once
#include <fa/core.cuh>

namespace fa::attn {

// The key blocks of a tile of `Queries` queries, each of which sees all keys. The walk begins at the block
// `nearest` to the last query, goes down to the first block, and then up from the block after the nearest.
// It answers what KeyRange answers. A place is how many blocks come after it.
template <int Queries, int BlockKeys>
struct NearestFirst {
  int nearest;
  int end_last;  // how many keys there are

  NearestFirst() = default;
  __device__ NearestFirst(int last_query, int keys)
      : nearest(min(max(last_query, 0), max(keys - 1, 0)) / BlockKeys), end_last(keys) {}

  __device__ void begin_piece(int /*warpgroup*/) {}
  __device__ int key_block(int place) const {
    const int step = step_of(place);
    return step <= nearest ? nearest - step : step;
  }
  __device__ void read_ahead(int /*place*/, int /*first*/) {}
  __device__ int next_block(int place) const { return key_block(place); }
  __device__ int end_block() const { return (end_last + BlockKeys - 1) / BlockKeys; }
  __device__ int first_block() const { return 0; }

  // The nearest key of some row may be in this block.
  __device__ bool near_end(int place) const { return step_of(place) * BlockKeys < Queries; }
  // The keys may end in this block.
  __device__ bool near_start(int place) const { return place == 0 && end_last % BlockKeys != 0; }
  __device__ bool hides(int place) const { return (key_block(place) + 1) * BlockKeys > end_last; }

 private:
  __device__ int step_of(int place) const { return end_block() - 1 - place; }
};

}  // namespace fa::attn
