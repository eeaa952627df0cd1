// SPDX-License-Identifier: Apache-2.0
// The new rows of all sequences follow each other.
#pragma once
#include <fa/cache_args.cuh>

namespace fa::cache::new_rows {

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
