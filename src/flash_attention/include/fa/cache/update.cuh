// SPDX-License-Identifier: Apache-2.0
// Before attention with a KV cache: stores the new keys and values of each sequence behind its rows in
// use, with a rotary embedding if asked, rotates q, and describes the keys: how many, and where.
//
// Nothing is stored outside of the cache. A sequence whose new rows do not all fit stores nothing and has no
// keys. CTA (b, r, t) handles row r and every gridDim.y-th row after it of sequence b: of K, V or Q.
#pragma once
#include <fa/cache/rows.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::cache {

template <class Config>
class Update {
  using Columns = typename Config::Columns;
  using Rotary = typename Config::Rotary;

 public:
  __device__ Update(const CacheKernelArgs& args, int batch)
      : args_(args),
        batch_(batch),
        rows_(args, batch),
        q_first_(args.cu_seqlens_q ? args.cu_seqlens_q[batch] : 0),
        q_len_(args.cu_seqlens_q ? args.cu_seqlens_q[batch + 1] - q_first_ : args.seq_len_q),
        fits_(rows_.fit(Rotary::kRotates, q_len_)) {}

  __device__ void store_keys() const {
    store(args_.k, args_.k_stride, args_.k_cache, args_.k_cache_stride, args_.d_qk,
          [&](const char* from, int chunk, int row) {
            return Rotary::template rotated<Config>(from, chunk, args_, rows_.position() + row);
          });
  }

  __device__ void store_values() const {
    store(args_.v, args_.v_stride, args_.v_cache, args_.v_cache_stride, args_.d_v,
          [&](const char* from, int chunk, int) { return Columns::load(from, chunk, args_.d_v); });
  }

  // Without an angle q stays what it is: it sees no key.
  __device__ void rotate_queries() const {
    const int batch = args_.cu_seqlens_q ? 0 : batch_;
    each_chunk(q_len_, args_.heads, args_.d_qk, [&](int row, int head, int chunk) {
      const char* const from = address(args_.q, args_.q_stride, batch, q_first_ + row, head);
      char* const to = const_cast<char*>(
          address(args_.rotated_q, args_.rotated_q_stride, batch, q_first_ + row, head));
      const int position = rows_.position() + (args_.one_position ? 0 : row);
      Columns::store(to, chunk, args_.d_qk,
                     fits_ ? Rotary::template rotated<Config>(from, chunk, args_, position)
                           : Columns::load(from, chunk, args_.d_qk));
    });
  }

  __device__ void describe() const {
    const int pad = fits_ ? rows_.pad() : 0;
    const int used = fits_ ? rows_.in_use() + rows_.new_rows().count() - pad : 0;
    if (blockIdx.y == 0 && threadIdx.x == 0) {
      args_.used[batch_] = used;
      if (args_.starts) {
        args_.starts[batch_] = batch_ * args_.max_rows + pad;
        if (batch_ == gridDim.x - 1) args_.starts[batch_ + 1] = (batch_ + 1) * args_.max_rows;
      }
    }
    if (!args_.own_table) return;
    const int page = args_.own_page_rows;
    for (int i = blockIdx.y * Config::kThreads + threadIdx.x; i < (used + page - 1) / page;
         i += gridDim.y * Config::kThreads) {
      const i64 row = rows_.among_all(pad + i * page);
      args_.own_table[batch_ * args_.own_table_stride + i] = row < 0 ? -1 : row / page;
    }
  }

 private:
  static __device__ const char* address(const void* tensor, const Strides& stride, i64 batch,
                                        int row, int head) {
    return static_cast<const char*>(tensor) +
           (batch * stride.batch + row * stride.seq + head * stride.head) * kElementBytes;
  }

  // `load` returns the chunk of a new row that is stored.
  template <class Load>
  __device__ void store(const void* news, const Strides& stride, void* cache,
                        const Strides& cache_stride, int columns, Load load) const {
    if (!fits_) return;
    each_chunk(rows_.new_rows().count(), args_.heads_k, columns, [&](int row, int head, int chunk) {
      const char* const from = address(news, stride, batch_, rows_.new_rows().first() + row, head);
      Columns::store(rows_.address(cache, cache_stride, rows_.in_use() + row, head), chunk, columns,
                     load(from, chunk, row));
    });
  }

  template <class Visit>
  static __device__ void each_chunk(int rows, int heads, int columns, Visit visit) {
    const int chunks = (columns + kChunkElements - 1) / kChunkElements;
    for (int row = blockIdx.y; row < rows; row += gridDim.y)
      for (int i = threadIdx.x; i < heads * chunks; i += Config::kThreads)
        visit(row, i / chunks, i % chunks);
  }

  const CacheKernelArgs& args_;
  const int batch_;
  const Rows<typename Config::NewRows> rows_;
  const int q_first_, q_len_;
  const bool fits_;
};

template <class Config>
__device__ void update(const CacheKernelArgs& args) {
  const Update<Config> update(args, blockIdx.x);
  if (blockIdx.z == 0) {
    update.describe();
    update.store_keys();
  } else if (blockIdx.z == 1) {
    update.store_values();
  } else {
    update.rotate_queries();
  }
}

}  // namespace fa::cache
