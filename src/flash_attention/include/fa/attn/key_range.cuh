// SPDX-License-Identifier: Apache-2.0
// Which key blocks a range of queries visits, from the last to the first, and which of them need a
// mask because some query does not see all keys. Query r sees the keys from first_key(r) to end_key(r), and
// neither falls as r grows.
#pragma once
#include <fa/attn/row_stats.cuh>
#include <fa/attn/sequence.cuh>

namespace fa::attn {

template <class Mask, int BlockKeys>
struct KeyRange {
  int start_first, start_last;  // first key that the first and the last of the rows see
  int end_first, end_last;      // where their keys end

  KeyRange() = default;
  __device__ KeyRange(const Mask& mask, int first, int count, const Sequence& sequence) {
    const int last = min(first + count, sequence.q_len) - 1;
    start_first = mask.first_key(first, sequence);
    start_last = mask.first_key(last, sequence);
    end_first = mask.end_key(first, sequence);
    end_last = mask.end_key(last, sequence);
  }

  __device__ int end_block() const { return (end_last + BlockKeys - 1) / BlockKeys; }
  __device__ int first_block() const {
    return Mask::kHasStart ? min(start_first / BlockKeys, end_block()) : 0;
  }

  // Some row has not seen a key before this block, or its keys end in it.
  __device__ bool near_end(int block) const { return (block + 1) * BlockKeys >= end_first; }
  // Some row's keys start in this block or after it.
  __device__ bool near_start(int block) const {
    return Mask::kHasStart && block * BlockKeys < start_last;
  }
  // Some row does not see all keys of this block.
  __device__ bool hides(int block) const {
    return (block + 1) * BlockKeys > end_first || near_start(block);
  }
};

// The columns of S are the keys in order.
struct InOrder {
  static constexpr int kLaneKeys = 2;  // from a lane of a quad to the next
  // The key of element e of fragment j in the first lane of a quad.
  template <int Columns>
  static __device__ constexpr int key(int j, int e) {
    return 8 * j + e;
  }
};

// Masks S of the tile with first row `row` and first key `key`: scores of unseen keys become -inf.
template <class Rows, class Order = InOrder, class Mask, int TileRows, int Cols>
__device__ void hide(Accumulator<TileRows, Cols>& s, const Mask& mask, int row, int key,
                     const Sequence& sequence) {
#pragma unroll
  for (int i = 0; i < TileRows / 16; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int position = Rows::position(row + 16 * i + lane_id() / 4 + 8 * h);
      const int lane_key = key + Order::kLaneKeys * (lane_id() % 4);
      const int end = mask.end_key(position, sequence) - lane_key;
      const int first = mask.first_key(position, sequence) - lane_key;
#pragma unroll
      for (int j = 0; j < Cols / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = Order::template key<Cols>(j, e);
          if (column >= end || (Mask::kHasStart && column < first))
            s.v[i][j][2 * h + e] = -kInfinity;
        }
    }
}

}  // namespace fa::attn
