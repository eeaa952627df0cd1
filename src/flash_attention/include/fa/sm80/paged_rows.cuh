// SPDX-License-Identifier: Apache-2.0
// The keys of one sequence and head in pages of `PageKeys` rows, which a block table lists. A requested row
// or chunk may be beyond them, and a page may not exist: both are zeros.
#pragma once
#include <fa/forward_args.cuh>

namespace fa::sm80 {

template <class Config, int PageKeys>
struct PagedRows {
  const void* const first;
  const Strides& stride;
  const int* const table;  // of this sequence
  const int head;
  const int rows, columns, pages;

  // Rows have no common distance, so that load() finds each by itself.
  __device__ i64 row_bytes() const { return 0; }
  __device__ const char* address(int /*row*/) const { return static_cast<const char*>(first); }
  __device__ bool has(int row, int chunk) const {
    return row < rows && chunk * kChunkElements < columns;
  }
  __device__ void load(u32 smem, const char* /*from*/, int row, int chunk) const {
    const int page = has(row, chunk) ? table[row / PageKeys] : -1;
    const bool inside = page >= 0 && page < pages;
    const i64 offset = page * stride.batch +
                       row % PageKeys * Config::RowStride::elements(stride.seq) +
                       head * stride.head;
    const char* const from =
        static_cast<const char*>(first) + offset * kElementBytes + chunk * kChunkBytes;
    Config::Copy::template chunk_or_zero<typename Config::Cache>(
        smem, inside ? from : static_cast<const char*>(first), inside);
  }
};

}  // namespace fa::sm80
