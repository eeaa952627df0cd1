// SPDX-License-Identifier: Apache-2.0
// Which query blocks a range of keys visits, and which of them need a mask because some key is not
// seen by all of their queries. Key k is seen by the queries from first_query(k) to end_query(k), and
// neither falls as k grows.
#pragma once
#include <fa/attn/sequence.cuh>

namespace fa::attn {

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
