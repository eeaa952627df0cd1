// SPDX-License-Identifier: Apache-2.0
// Before attention with a KV cache: stores the new keys and values of each sequence behind its rows in
// use, with a rotary embedding if asked, rotates q, and describes the keys: how many, and where.
//
// Nothing is stored outside of the cache. A sequence whose new rows do not all fit stores nothing and has no
// keys. CTA (b, r, t) handles row r and every gridDim.y-th row after it of sequence b: of K, V or Q.
#pragma once
#include <fa/cache_args.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::cache {

// The rows of one sequence in a KV cache: where they are, how many are in use, and whether the new ones
// fit. Row numbers count from the start of the sequence, padding included.
template <class NewRows>
class Rows {
 public:
  __device__ Rows(const CacheKernelArgs& args, int batch)
      : args_(args),
        place_(args.index ? args.index[batch] : batch),
        in_use_(args.seqlens ? args.seqlens[batch] : args.all_in_use),
        pad_(args.leftpad ? args.leftpad[batch] : 0),
        position_(args.rotary_seqlens ? args.rotary_seqlens[batch] : in_use_),
        new_rows_(args, batch) {}

  __device__ int in_use() const { return in_use_; }
  __device__ int pad() const { return pad_; }
  __device__ int position() const { return position_; }  // of the first new row
  __device__ const NewRows& new_rows() const { return new_rows_; }

  // Whether all new rows have a place, and they and `queries` queries an angle. All lanes of a warp call it
  // together and get the same answer.
  __device__ bool fit(bool rotates, int queries) const {
    const int positions = max(new_rows_.count(), args_.one_position ? 1 : queries);
    bool all = inside(place_, args_.table ? args_.table_rows : args_.entries) && in_use_ >= 0 &&
               in_use_ <= args_.max_rows - new_rows_.count() && pad_ >= 0 &&
               pad_ <= in_use_ + new_rows_.count();
    if (rotates) all = all && position_ >= 0 && position_ <= args_.rotary_rows - positions;
    if (all && args_.table)
      for (int row = in_use_ - in_use_ % args_.entry_rows + lane_id() * args_.entry_rows;
           row < in_use_ + new_rows_.count(); row += kWarpSize * args_.entry_rows)
        all = all && inside(entry(row), args_.entries);
    return __all_sync(~0u, all);
  }

  // Which entry has a row.
  __device__ int entry(int row) const {
    return args_.table
               ? args_.table[static_cast<i64>(place_) * args_.table_stride + row / args_.entry_rows]
               : place_;
  }
  // The number of a row among those of all entries, or -1 if its entry does not exist.
  __device__ i64 among_all(int row) const {
    const int of = entry(row);
    if (!inside(of, args_.entries)) return -1;
    return static_cast<i64>(of) * args_.entry_rows + row % args_.entry_rows;
  }
  __device__ char* address(void* cache, const Strides& stride, int row, int head) const {
    return static_cast<char*>(cache) +
           (entry(row) * stride.batch + row % args_.entry_rows * stride.seq + head * stride.head) *
               kElementBytes;
  }

 private:
  static __device__ bool inside(int number, int count) { return number >= 0 && number < count; }

  const CacheKernelArgs& args_;
  const int place_;  // its row of the table, or its entry
  const int in_use_, pad_, position_;
  const NewRows new_rows_;
};

}  // namespace fa::cache

namespace fa::cache::new_rows {

// Every sequence has the same number of new rows.
class Padded {
 public:
  __device__ Padded(const CacheKernelArgs& args, int /*batch*/) : args_(args) {}

  __device__ int first() const { return 0; }
  __device__ int count() const { return args_.new_rows; }

 private:
  const CacheKernelArgs& args_;
};

// The new rows of all sequences follow each other.
class Packed {
 public:
  __device__ Packed(const CacheKernelArgs& args, int batch)
      : first_(args.cu_seqlens_k_new[batch]), count_(args.cu_seqlens_k_new[batch + 1] - first_) {}

  __device__ int first() const { return first_; }
  __device__ int count() const { return count_; }

 private:
  const int first_, count_;
};

}  // namespace fa::cache::new_rows

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
