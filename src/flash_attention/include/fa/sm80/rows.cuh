// SPDX-License-Identifier: Apache-2.0
// Rows of a tensor that may be fewer than its tile has.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/forward_args.cuh>

namespace fa::sm80 {

template <class T>
concept TensorView = requires(const T& tensor, u32 smem, int row, int chunk) {
  tensor.row_bytes();
  tensor.has(row, chunk);
  tensor.load(smem, tensor.address(row), row, chunk);
};

// Rows of one sequence and head in a tensor; a requested row or chunk may be beyond them.
template <class Config>
struct PredicatedRows {
  const void* const first;
  const Strides& stride;
  const int batch, head;
  const int before;  // rows of the sequences before it, if they are packed
  const int rows, columns;

  __device__ i64 row_bytes() const {
    return Config::RowStride::elements(stride.seq) * kElementBytes;
  }
  __device__ const char* address(int row) const {
    return static_cast<const char*>(first) +
           (batch * stride.batch + head * stride.head) * kElementBytes +
           (before + row) * row_bytes();
  }
  __device__ bool has(int row, int chunk) const {
    return row < rows && chunk * kChunkElements < columns;
  }
  __device__ void load(u32 smem, const char* from, int row, int chunk) const {
    const bool inside = has(row, chunk);
    Config::Copy::template chunk_or_zero<typename Config::Cache>(
        smem, inside ? from : static_cast<const char*>(first), inside);
  }
};

template <class Config>
__device__ PredicatedRows<Config> query_rows(const void* first, const Strides& stride, int columns,
                                             const attn::Sequence& sequence, int head) {
  return {first, stride, sequence.q_batch, head, sequence.q_first, sequence.q_len, columns};
}

template <class Config>
__device__ PredicatedRows<Config> key_rows(const void* first, const Strides& stride, int columns,
                                           const attn::Sequence& sequence, int kv_head) {
  return {first, stride, sequence.k_batch, kv_head, sequence.k_first, sequence.k_len, columns};
}

// The keys of one sequence and head in pages of `PageKeys` rows, which a block table lists. A requested row
// or chunk may be beyond them, and a page may not exist: both are zeros.
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
