// SPDX-License-Identifier: Apache-2.0
// Scores before the softmax: the slot Score changes them, the slot Mask says which of them count, and the
// ranges say which blocks are visited and which of these need the mask.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/attn/softmax.cuh>
#include <fa/core.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn {

template <class T>
concept ScoreSlot = requires(Accumulator<16, 16>& s, const CallArgs& args) {
  T::change(s, args);
  { T::scale(args) } -> Same<float>;
  { T::slope(0.f) } -> Same<float>;
};

template <class T>
concept MaskSlot =
    requires(const T& mask, int row, const Sequence& sequence, const CallArgs& args) {
      T(args);
      { T::kHasStart } -> Same<const bool&>;
      { T::kSeesAll } -> Same<const bool&>;
      { mask.first_key(row, sequence) } -> Same<int>;
      { mask.end_key(row, sequence) } -> Same<int>;
      { mask.first_query(row, sequence) } -> Same<int>;
      { mask.end_query(row, sequence) } -> Same<int>;
      { mask.most_keys(row, sequence) } -> Same<int>;
    };

}  // namespace fa::attn

namespace fa::attn::score {

// Scores as the product gives them, times the softmax scale.
struct Plain {
  static __device__ float scale(const CallArgs& args) { return args.softmax_scale; }

  template <int Rows, int Cols>
  static __device__ void change(Accumulator<Rows, Cols>&, const CallArgs&) {}

  // The derivative of a changed score by the scaled one.
  static __device__ float slope(float /*changed*/) { return 1.f; }
};

// Softcapped scores: cap tanh(scale s / cap). S becomes the hyperbolic tangent, and the cap replaces
// the softmax scale.
struct Softcap {
  static __device__ float scale(const CallArgs& args) { return args.softcap; }

  template <int Rows, int Cols>
  static __device__ void change(Accumulator<Rows, Cols>& s, const CallArgs& args) {
    const float inner = args.softmax_scale / args.softcap;
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int j = 0; j < Cols / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s.v[i][j][e] = ptx::tanh(s.v[i][j][e] * inner);
  }

  // The derivative of a changed score by the scaled one: 1 - tanh^2, or 0 if a mask made it -inf.
  static __device__ float slope(float changed) { return fmaxf(1.f - changed * changed, 0.f); }
};

}  // namespace fa::attn::score

namespace fa::attn::mask {

// Every query sees every key.
struct Full {
  static constexpr bool kHasStart = false, kSeesAll = true;

  __device__ explicit Full(const CallArgs&) {}
  __device__ int first_key(int /*row*/, const Sequence&) const { return 0; }
  __device__ int end_key(int /*row*/, const Sequence& sequence) const { return sequence.k_len; }
  __device__ int first_query(int /*key*/, const Sequence&) const { return 0; }
  __device__ int end_query(int /*key*/, const Sequence& sequence) const { return sequence.q_len; }
  // The most keys that consecutive queries see together.
  __device__ int most_keys(int /*queries*/, const Sequence& sequence) const {
    return sequence.k_len;
  }
};

// The last query sees all keys, the query before it one less, and so on: aligned to the bottom right.
struct Causal {
  static constexpr bool kHasStart = false, kSeesAll = false;

  __device__ explicit Causal(const CallArgs&) {}
  __device__ int first_key(int /*row*/, const Sequence&) const { return 0; }
  __device__ int end_key(int row, const Sequence& sequence) const {
    return min(max(row + 1 + sequence.k_len - sequence.q_len, 0), sequence.k_len);
  }
  __device__ int first_query(int key, const Sequence& sequence) const {
    return min(max(key - sequence.k_len + sequence.q_len, 0), sequence.q_len);
  }
  __device__ int end_query(int /*key*/, const Sequence& sequence) const { return sequence.q_len; }
  __device__ int most_keys(int /*queries*/, const Sequence& sequence) const {
    return sequence.k_len;
  }
};

// A query sees the keys from window_left before the key that it is aligned with to window_right after
// it, both included. The last query is aligned with the last key.
struct Window {
  static constexpr bool kHasStart = true, kSeesAll = false;
  const int left, right;

  __device__ explicit Window(const CallArgs& args)
      : left(args.window_left), right(args.window_right) {}
  __device__ int first_key(int row, const Sequence& sequence) const {
    return min(max(place(row, sequence) - left, 0), sequence.k_len);
  }
  __device__ int end_key(int row, const Sequence& sequence) const {
    return min(max(place(row, sequence) + right + 1, 0), sequence.k_len);
  }
  __device__ int first_query(int key, const Sequence& sequence) const {
    return min(max(key - place(0, sequence) - right, 0), sequence.q_len);
  }
  __device__ int end_query(int key, const Sequence& sequence) const {
    return min(max(key - place(0, sequence) + left + 1, 0), sequence.q_len);
  }
  __device__ int most_keys(int queries, const Sequence& sequence) const {
    return min(left + right + queries, sequence.k_len);
  }

 private:
  static __device__ int place(int row, const Sequence& sequence) {
    return row + sequence.k_len - sequence.q_len;
  }
};

}  // namespace fa::attn::mask

namespace fa::attn {

// Which key blocks a range of queries visits, from the last to the first, and which of them need a
// mask because some query does not see all keys. Query r sees the keys from first_key(r) to end_key(r), and
// neither falls as r grows.
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

  __device__ void begin_piece(int /*warpgroup*/) {}
  __device__ int key_block(int block) const { return block; }
  __device__ void read_ahead(int /*block*/, int /*first*/) {}
  __device__ int next_block(int block) const { return block; }
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

// Which query blocks a range of keys visits, and which of them need a mask because some key is not
// seen by all of their queries. Key k is seen by the queries from first_query(k) to end_query(k), and
// neither falls as k grows.
template <class Mask, int BlockQueries>
struct QueryRange {
  int start_first, start_last;  // first query that sees the first and the last of the keys
  int end_first, end_last;      // where their queries end
  bool ragged;                  // the range goes beyond the keys of the sequence

  QueryRange() = default;
  // The sequence has at least one key from `first` on.
  __device__ QueryRange(const Mask& mask, int first, int count, const Sequence& sequence) {
    const int last = min(first + count, sequence.k_len) - 1;
    start_first = mask.first_query(first, sequence);
    start_last = mask.first_query(last, sequence);
    end_first = mask.end_query(first, sequence);
    end_last = mask.end_query(last, sequence);
    ragged = first + count > sequence.k_len;
  }

  __device__ int first_block() const { return start_first / BlockQueries; }
  __device__ int end_block() const {
    return max((end_last + BlockQueries - 1) / BlockQueries, first_block());
  }
  __device__ bool empty() const { return start_first >= end_last; }

  // Some key is not seen by all queries of this block. Rows after the last query do not count: their
  // log-sum-exp makes their P zero.
  __device__ bool hides(int block) const {
    return ragged || block * BlockQueries < start_last ||
           (Mask::kHasStart && (block + 1) * BlockQueries > end_first);
  }
};

}  // namespace fa::attn
