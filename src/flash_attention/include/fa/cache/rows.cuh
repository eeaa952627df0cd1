// SPDX-License-Identifier: Apache-2.0
// The rows of one sequence in a KV cache: where they are, how many are in use, and whether the new ones
// fit. Row numbers count from the start of the sequence, padding included.
#pragma once
#include <fa/cache_args.cuh>

namespace fa::cache {

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
