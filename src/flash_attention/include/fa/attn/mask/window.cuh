// SPDX-License-Identifier: Apache-2.0
// A query sees the keys from window_left before the key that it is aligned with to window_right after
// it, both included. The last query is aligned with the last key.
#pragma once
#include <fa/attn/sequence.cuh>

namespace fa::attn::mask {

struct Window {
  static constexpr bool kHasStart = true;
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

 private:
  static __device__ int place(int row, const Sequence& sequence) {
    return row + sequence.k_len - sequence.q_len;
  }
};

}  // namespace fa::attn::mask
